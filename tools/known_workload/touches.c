/* Touches known pages of a given range, prime numbers of times: loaded into a process whose tracker watches.
 *
 * One call is one layer. What it does in layer l of 31 is written in `table`, which a test compares with what
 * the tracker reports; nothing else of the range is touched. */
#include <pthread.h>
#include <unistd.h>

#define PAGE 4096
#define LAYERS 31

enum way { USER, SYSTEM_CALL, THREADS };

struct touch {
	int first_page, n_pages;
	int layers; /* touched in the first so many layers: a prime */
	int write;
	int way;
};

static const struct touch table[] = {
	{ 0, 1, 29, 1, USER },	       { 1, 1, 23, 0, USER },	      { 2, 3, 19, 1, USER },
	{ 7, 2, 17, 0, USER },	       { 7, 2, 13, 1, USER }, /* read, then written */
	{ 100, 1, 11, 1, SYSTEM_CALL }, { 103, 2, 7, 0, SYSTEM_CALL }, { 200, 5, 5, 1, THREADS },
	{ 211, 3, 3, 0, THREADS },     { 300, 97, 2, 0, USER },	      { 997, 1, 31, 1, USER },
};
#define ROWS ((int)(sizeof(table) / sizeof(table[0])))

static char *base;

static void by_user(const struct touch *t)
{
	for (int page = t->first_page; page < t->first_page + t->n_pages; page++) {
		volatile char *byte = base + (long)page * PAGE + page % PAGE;
		if (t->write)
			*byte = (char)page;
		else
			(void)*byte;
	}
}

static int by_system_call(const struct touch *t)
{
	int ends[2], failed = 0;
	char word[8] = "known";
	if (pipe(ends))
		return -1;
	for (int page = t->first_page; page < t->first_page + t->n_pages; page++) {
		char *there = base + (long)page * PAGE + PAGE / 2;
		if (t->write)
			failed |= write(ends[1], word, 8) != 8 || read(ends[0], there, 8) != 8;
		else
			failed |= write(ends[1], there, 8) != 8 || read(ends[0], word, 8) != 8;
	}
	close(ends[0]);
	close(ends[1]);
	return failed ? -1 : 0;
}

static void *on_thread(void *touch)
{
	by_user(touch);
	return 0;
}

static int by_threads(const struct touch *t)
{
	pthread_t threads[8];
	struct touch one[8];
	for (int i = 0; i < t->n_pages; i++) {
		one[i] = *t;
		one[i].first_page += i;
		one[i].n_pages = 1;
		if (pthread_create(&threads[i], 0, on_thread, &one[i]))
			return -1;
	}
	for (int i = 0; i < t->n_pages; i++)
		pthread_join(threads[i], 0);
	return 0;
}

int workload_layers(void)
{
	return LAYERS;
}

/* Row `i` of the table as {first page, pages, layers, write, way}; how many rows there are. */
int workload_row(int i, int out[5])
{
	if (i < ROWS) {
		out[0] = table[i].first_page;
		out[1] = table[i].n_pages;
		out[2] = table[i].layers;
		out[3] = table[i].write;
		out[4] = table[i].way;
	}
	return ROWS;
}

/* Does layer `layer` on the range at `start`, which has 1009 pages; 0, or -1 if a system call failed. */
int workload_layer(void *start, int layer)
{
	int failed = 0;
	base = start;
	for (int i = 0; i < ROWS; i++) {
		if (layer >= table[i].layers)
			continue;
		if (table[i].way == USER)
			by_user(&table[i]);
		else
			failed |= table[i].way == SYSTEM_CALL ? by_system_call(&table[i]) : by_threads(&table[i]);
	}
	return failed;
}
