/* Reads of the files below a folder take as long as from a described source, and are counted. For LD_PRELOAD.
 *
 * SOURCE_ROOT: the folder. SOURCE_STATE: a file of `struct state`, which whoever measures writes and reads while the
 * process runs. A read that goes on where the one before on the same descriptor ended costs its bytes only, for a file
 * system reads ahead; every other one costs the latency as well. A source serves `depth` reads at once, and all bytes
 * over one link. Without a latency and a bandwidth reads are only counted. On a bare disk the kernel forgets the pages of
 * a file once some were read, so each read asks the disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST 65536
#define SLOTS 64

struct state {
    _Atomic uint64_t latency_ns, bytes_per_s, depth;
    _Atomic uint64_t reads, bytes;
    _Atomic uint64_t link_until, slot_until[SLOTS];
    _Atomic uint64_t bare;
};

static struct state *state;
static const char *root;
static _Atomic int64_t next_at[MOST]; /* 0: not of the source; else 1 + where the next read goes on, -1: nowhere yet */

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SOURCE_STATE");
    int fd;
    root = getenv("SOURCE_ROOT");
    if (!path || !root) return;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    state = mmap(0, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED) state = 0;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Takes `ns` of something that serves one at a time, from `from` on; returns when that ends. */
static uint64_t reserve(_Atomic uint64_t *until, uint64_t from, uint64_t ns) {
    uint64_t old = atomic_load(until), end;
    do end = (old > from ? old : from) + ns;
    while (!atomic_compare_exchange_weak(until, &old, end));
    return end;
}

static void served(int fd, int64_t at, ssize_t nbytes) {
    uint64_t latency, rate, depth, transfer, end, now;
    int far;
    if (nbytes <= 0) return;
    if (state->bare) (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    far = atomic_exchange(&next_at[fd], at + nbytes + 1) != at + 1;
    atomic_fetch_add(&state->reads, (uint64_t)far);
    atomic_fetch_add(&state->bytes, (uint64_t)nbytes);
    latency = far ? state->latency_ns : 0;
    rate = state->bytes_per_s;
    depth = state->depth;
    if (!rate) return;
    now = now_ns();
    transfer = (uint64_t)((double)nbytes * 1e9 / (double)rate);
    end = reserve(&state->link_until, now, transfer); /* the link is free for others while the latency passes */
    if (end < now + latency + transfer) end = now + latency + transfer;
    if (depth && depth <= SLOTS) {
        uint64_t slot = 0, i, served_by;
        for (i = 1; i < depth; i++)
            if (state->slot_until[i] < state->slot_until[slot]) slot = i;
        served_by = reserve(&state->slot_until[slot], now, latency + transfer);
        if (served_by > end) end = served_by;
    }
    {
        struct timespec t = {(time_t)(end / 1000000000u), (long)(end % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0)) {
        }
    }
}

static int ours(int fd) { return state && fd >= 0 && fd < MOST && next_at[fd]; }

static int opened(int fd, const char *path) {
    if (state && fd >= 0 && fd < MOST) next_at[fd] = strncmp(path, root, strlen(root)) ? 0 : -1;
    return fd;
}

/* What the next library calls `name`. Asked once at each place: threads that ask at once get the same answer. */
#define REAL(name)                                                                        \
    (__extension__({                                                                      \
        static __typeof__(&name) _Atomic real;                                            \
        __typeof__(&name) found = atomic_load_explicit(&real, memory_order_relaxed);      \
        if (!found) {                                                                     \
            found = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                           \
            atomic_store_explicit(&real, found, memory_order_relaxed);                    \
        }                                                                                 \
        found;                                                                            \
    }))
#define MODE(flags)                                      \
    mode_t mode = 0;                                     \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {             \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        mode = va_arg(rest, mode_t);                     \
        va_end(rest);                                    \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    return opened(REAL(open)(path, flags, mode), path);
}
int open64(const char *path, int flags, ...) {
    MODE(flags)
    return opened(REAL(open64)(path, flags, mode), path);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return opened(REAL(openat)(folder, path, flags, mode), path);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return opened(REAL(openat64)(folder, path, flags, mode), path);
}
int close(int fd) {
    if (state && fd >= 0 && fd < MOST) next_at[fd] = 0;
    return REAL(close)(fd);
}

#define COUNTED(name, type, parameters, arguments, at)   \
    type name parameters {                               \
        int64_t begin = ours(fd) ? (int64_t)(at) : 0;    \
        type got = REAL(name) arguments;                 \
        if (ours(fd)) served(fd, begin, got);            \
        return got;                                      \
    }
/* A described source is in no page cache: what is not to wait finds nothing. */
#define COUNTED_2(name, type, parameters, arguments, at)                \
    type name parameters {                                              \
        int64_t begin = ours(fd) ? (int64_t)(at) : 0;                   \
        type got;                                                       \
        if (ours(fd) && state->bytes_per_s && (f & RWF_NOWAIT)) {       \
            errno = EAGAIN;                                             \
            return -1;                                                  \
        }                                                               \
        got = REAL(name) arguments;                                     \
        if (ours(fd)) served(fd, begin, got);                           \
        return got;                                                     \
    }
#define HERE lseek(fd, 0, SEEK_CUR)

COUNTED(read, ssize_t, (int fd, void *to, size_t n), (fd, to, n), HERE)
COUNTED(readv, ssize_t, (int fd, const struct iovec *to, int n), (fd, to, n), HERE)
COUNTED(pread, ssize_t, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), at)
COUNTED(pread64, ssize_t, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at), at)
COUNTED(preadv, ssize_t, (int fd, const struct iovec *to, int n, off_t at), (fd, to, n, at), at)
COUNTED(preadv64, ssize_t, (int fd, const struct iovec *to, int n, off64_t at), (fd, to, n, at), at)
COUNTED_2(preadv2, ssize_t, (int fd, const struct iovec *to, int n, off_t at, int f), (fd, to, n, at, f), at)
COUNTED_2(preadv64v2, ssize_t, (int fd, const struct iovec *to, int n, off64_t at, int f), (fd, to, n, at, f), at)
COUNTED(sendfile, ssize_t, (int out, int fd, off_t *at, size_t n), (out, fd, at, n), at ? *at : HERE)
COUNTED(sendfile64, ssize_t, (int out, int fd, off64_t *at, size_t n), (out, fd, at, n), at ? *at : HERE)
COUNTED(copy_file_range, ssize_t, (int fd, off64_t *at, int out, off64_t *to, size_t n, unsigned f),
        (fd, at, out, to, n, f), at ? *at : HERE)
