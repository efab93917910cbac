/* libsentinel: what Python cannot do, behind a flat C ABI.
 *
 * Calls return 0 or -errno unless they say otherwise. Addresses and byte counts are uint64_t, ranges
 * half-open, times nanoseconds of CLOCK_MONOTONIC. One section per source file. */
#ifndef SENTINEL_H
#define SENTINEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SN_API __attribute__((visibility("default")))
#define SN_ABI_VERSION 1

/* ---- system.cpp: every system call of the library goes through one replaceable function -------------- */

/* Performs system call `number`; returns its result or -errno. */
typedef long (*sn_system_call)(long number, const long arguments[6]);

SN_API int sn_abi_version(void);
SN_API long sn_system(long number, long a, long b, long c, long d, long e, long f);
/* NULL puts the kernel's own back. */
SN_API void sn_system_replace(sn_system_call call);
/* For tests: from now on the `nth` (1 = the next) call of `number` (-1: of any number) fails once with
 * `error` (positive errno), unexecuted; nth = 0 cancels. Returns the calls of that number left to go
 * from an earlier order, 0 if it was used up. */
SN_API uint64_t sn_system_fail(long number, uint64_t nth, int error);

/* ---- clock.cpp: one total order for all logs, and the layer that the program is in ------------------- */

SN_API uint64_t sn_next_seq(void);      /* process-wide, starts at 1, never repeats */
SN_API int32_t sn_current_layer(void);  /* -1: unsynchronised */
SN_API uint64_t sn_now_ns(void);        /* CLOCK_MONOTONIC */

/* ---- log.cpp: the allocation log --------------------------------------------------------------------- */

enum { SN_EVENT_ALLOC = 1, SN_EVENT_FREE = 2, SN_EVENT_TICK = 3 };
enum {
  SN_FLAG_SMALL = 1,    /* under 1 KiB, from malloc */
  SN_FLAG_FALLBACK = 2, /* from malloc for another reason; every FREE of malloc memory has it */
  SN_FLAG_FOREIGN = 4,  /* by another thread than the owner; ordinal is -1 */
  SN_FLAG_SLOT = 8      /* served from a planned slot */
};

typedef struct sn_event {
  uint64_t seq;
  uint64_t address;
  uint64_t nbytes; /* as requested; 0 for FREE and TICK: a FREE ends the last ALLOC of its address */
  uint64_t time_ns;
  int32_t layer;
  int32_t ordinal; /* of the owner's allocations (of more than 0 bytes) since the last tick; else -1 */
  uint32_t flags;
  uint8_t kind;
  uint8_t reserved[3];
} sn_event;

SN_API uint64_t sn_log_count(void); /* events held */
SN_API uint64_t sn_log_lost(void);  /* events that found the log full */
/* Copies events [first, first + count) in the order of their slots, nearly that of seq; returns how many. One that another
   thread is about to write is all zeros: its seq is 0, which no event has. */
SN_API uint64_t sn_log_copy(uint64_t first, uint64_t count, sn_event *out);

/* ---- memory.cpp: the allocator's modes, dispatch and counters ---------------------------------------- */

enum { SN_PASS_THROUGH = 0, SN_RECORD = 1, SN_PLACE = 2 };

enum {
  SN_WHY_SMALL = 0,
  SN_WHY_FOREIGN_THREAD,
  SN_WHY_PASS_THROUGH,
  SN_WHY_NO_SLOT,
  SN_WHY_SIZE_DIFFERS,
  SN_WHY_BUSY,
  SN_WHY_UNSYNCHRONISED,
  SN_WHY_NO_MEMORY,
  SN_WHY_COUNT
};

typedef struct sn_counters {
  uint64_t served; /* allocations from an arena */
  uint64_t served_bytes;
  uint64_t fallback[SN_WHY_COUNT]; /* allocations from malloc, by reason */
  uint64_t fallback_bytes[SN_WHY_COUNT];
  int64_t live_bytes; /* in arenas, as requested */
  int64_t peak_live_bytes;
  int64_t unmanaged_live_bytes; /* from malloc, usable sizes */
  int64_t unmanaged_peak_bytes;
  uint64_t foreign_frees; /* of arena memory, by other threads */
} sn_counters;

/* Reserves address space: `exclusive_bytes` and `placement_bytes` of it, halved until the host grants it.
 * 0 if it exists already. The calling thread becomes the owner. -EOPNOTSUPP where pages are not of 4 KiB; -ENOLCK where all
 * that is mapped is locked (mlockall with MCL_FUTURE). */
SN_API int sn_memory_create(uint64_t exclusive_bytes, uint64_t placement_bytes);
/* -EBUSY while arena memory is live. Only for tests: storages may outlive anything else. */
SN_API int sn_memory_destroy(void);
SN_API int sn_memory_own(void);         /* the calling thread becomes the owner */
SN_API int sn_memory_is_owner(void);    /* 1 or 0 */
SN_API uint64_t sn_thread_number(void); /* of the calling thread, from 1 on; no later one gets it again */
SN_API int sn_memory_mode(void);        /* SN_PASS_THROUGH ... */

/* 64-byte aligned memory; NULL only if malloc has none. Any thread. Never called with 0 bytes. */
SN_API void *sn_allocate(uint64_t nbytes);
/* Frees what sn_allocate or sn_allocate_exclusive gave. Any thread, also in a forked child. */
SN_API void sn_free(void *address);

/* The next allocations belong to `layer`, ordinals restart at 0. -1: unsynchronised. Owner only (-EPERM);
 * without an arena it only sets the layer. */
SN_API int sn_tick(int32_t layer);

/* Modes; owner only (-EPERM). Each drains other threads' frees. Leaving record or place returns
 * the free pages of its arena to the system; leaving record empties the log and returns its pages too. */
SN_API int sn_pass_through(void);
SN_API int sn_record(void); /* clears the log */
/* Slot i serves the allocation (layers[i], ordinals[i]) at placement base + offsets[i]. Offsets are multiples
 * of SN_GRANULE_BYTES; slots may overlap: what is free in fact decides. log != 0: clears the log and
 * records events in this mode too. -EINVAL for a bad table. */
SN_API int sn_place(uint64_t count, const int32_t *layers, const int32_t *ordinals, const uint64_t *offsets,
                    const uint64_t *nbytes, uint64_t extent_bytes, int log);
/* One table more, for steps of another shape, up to ten: returns its index, that of sn_place being 0; -ENOSPC for the
 * eleventh. Before each allocation the table that would have served the latest 32 of the step best (most of their
 * size, most fit, least room left empty) is put in use, at most four times a step. -EINVAL in another mode. */
SN_API int sn_place_also(uint64_t count, const int32_t *layers, const int32_t *ordinals, const uint64_t *offsets,
                         const uint64_t *nbytes, uint64_t extent_bytes);
SN_API int sn_use_table(int32_t table);      /* -EINVAL if there is none such; owner's thread */
SN_API const int32_t *sn_table_in_use(void); /* where its index is kept */

SN_API void sn_memory_counters(sn_counters *out);
SN_API void sn_memory_reset_peaks(void); /* peaks restart from what is live now */
SN_API int sn_memory_contains(uint64_t address);

/* ---- exclusive.cpp: each tensor on its own pages ----------------------------------------------------- */

typedef struct sn_range {
  uint64_t base;
  uint64_t used_bytes;     /* ever handed out, from base: what a tracker watches */
  uint64_t reserved_bytes; /* address space */
  uint64_t free_bytes;     /* free within used_bytes */
} sn_range;

SN_API int sn_exclusive_range(sn_range *out); /* -ENODEV before create */
/* Own pages, start and length aligned, in any mode; NULL if there is no room. Owner only. Not logged. */
SN_API void *sn_allocate_exclusive(uint64_t nbytes);
/* Whether the chunks of 2 MiB that one such allocation fills, from now on, may be huge pages while nothing watches them:
 * they may unless told otherwise. Owner only. */
SN_API void sn_exclusive_huge(int may);
/* The chunks that hold these addresses shall have small pages when sn_arm_unback makes them private. Owner only. */
SN_API void sn_exclusive_small(uint64_t count, const uint64_t *addresses);
/* Copies `nbytes` into such pages, which nothing has touched yet, by several threads. Between sn_arm_back and
 * sn_arm_unback they go straight to the memfd, and no page is mapped under its address. 0 or -errno. */
SN_API int sn_exclusive_fill(void *to, const void *from, uint64_t nbytes);
/* Returns free pages to the system. Owner only. Bytes of free ranges discarded, or -errno. */
SN_API int64_t sn_exclusive_release(void);

/* ---- placement.cpp: planned slots -------------------------------------------------------------------- */

#define SN_GRANULE_BYTES 512

/* Bytes served so far in slots of another size than the plan expected; they count as served. */
SN_API uint64_t sn_placement_fitted(void);
/* By how many bytes the sizes asked for so far differ from those that the plan expected; all of one it expected not. */
SN_API uint64_t sn_placement_unlike(void);
SN_API int sn_placement_range(sn_range *out); /* used_bytes: the extent; free_bytes: 0 */
/* Ranges [offsets[i], + nbytes[i]) of the arena that may be huge pages from now on; the rest, and all that a table adds
 * later, may not. Ascending multiples of 2 MiB within what tables cover, else -EINVAL. Pages that exist stay as
 * they are. Where the kernel has no huge pages nothing changes. */
SN_API int sn_placement_huge(uint64_t count, const uint64_t *offsets, const uint64_t *nbytes);
/* Drops those whole pages of [offset, offset + nbytes) that nobody has: their bytes, or -errno. Pages of it that tenants have are
 * dropped as these are freed. Any thread. Multiples of SN_GRANULE_BYTES, else -EINVAL. */
SN_API int64_t sn_placement_discard(uint64_t offset, uint64_t nbytes);
/* Returns all free pages of the arena to the system, reserving them meanwhile. Bytes, or -errno. Any thread. */
SN_API int64_t sn_placement_release(void);

/* ---- mover.cpp: moves between memory tiers, within a hard budget of fast bytes ------------------------ */

/* Tiers are numbered; tier 0 is the fast one. A job whose target it is, is a promotion, any other a demotion, between two
 * slower tiers too. One worker a direction, each with a queue in the order of submission; node jobs of one node that are
 * ready together and small are carried out in the same system calls. A promotion starts when the fast tier
 * has room for it and holds that room from then on; a demotion gives room back when it has ended: what is in
 * flight counts on both sides. Births (sn_mover_reserve) go before promotions that wait for room.
 * In a forked child a mover is inert: calls that return int give -ECHILD, others 0. */
typedef struct sn_mover sn_mover;

enum { SN_PROMOTE = 0, SN_DEMOTE = 1 }; /* directions */
#define SN_TIERS 8 /* at most */
enum { SN_MOVE_EMULATED = 0, SN_MOVE_NODE = 1, SN_MOVE_BACKEND = 2 };
enum { SN_MOVE_DONE = 0, SN_MOVE_PARTIAL, SN_MOVE_FAILED, SN_MOVE_CANCELLED, SN_MOVE_ALREADY };
#define SN_ERRNO_COUNT 134

typedef struct sn_span {
  uint64_t address; /* of a page */
  uint64_t nbytes;  /* whole pages */
} sn_span;

/* What moves bytes to and from a tier that is not memory of this process, such as a file or a device. */
typedef struct sn_backend {
  /* Moves the bytes of `spans` from tier `source` to tier `target`, of which one is the fast one: 0, or a positive errno
   * and every byte is where it was. A worker of the mover calls it, without a lock; one call for each direction at a
   * time. */
  int (*move)(void *context, const sn_span *spans, uint64_t span_count, int source, int target);
  void *context;
} sn_backend;

typedef struct sn_job {
  uint64_t nbytes;      /* the whole block */
  uint64_t held[SN_TIERS]; /* of them, what each tier holds now, in all `nbytes`; after `after`: what it is expected to */
  uint64_t duration_ns; /* emulated: on an idle link */
  uint64_t bytes_per_s; /* node: no faster than this; 0: as fast as it goes */
  uint64_t after;       /* starts when this job has ended, with what it left held; 0: none. It
                         * must have started, or the two queues might wait for each other. */
  const sn_span *spans; /* taken over at once. node: what moves. emulated: what is copied meanwhile, see sn_copied */
  uint64_t span_count;
  uint64_t spare_duration_ns; /* as duration_ns, to `spare`; of a promotion: from the spare tier of the job before it,
                               * where that has left the block there */
  const sn_backend *backend; /* backend: what moves `spans`; it lives longer than the mover */
  int32_t node; /* node: where to */
  int32_t spare_node; /* as node, of `spare` */
  uint8_t source; /* tier in which bytes that stay are counted: another one than `target` */
  uint8_t target; /* tier */
  uint8_t kind;
  uint8_t first; /* 1: a demotion of what the kernel put into fast memory by itself: promotions that have not
                  * started wait for its end, and what stays there is held but is no overflow */
  uint8_t spare; /* of a demotion: the tier to which it goes where `target` has no room and no promotion is making any;
                  * `source`: it ends as SN_MOVE_CANCELLED then; 0: none, it goes to `target` all the same, which counts
                  * as overflow */
} sn_job;

typedef struct sn_moved {
  uint64_t id;
  uint64_t start_ns; /* 0 if it never started */
  uint64_t stop_ns;
  uint64_t moved_bytes; /* by this job; the rest was there, was never touched, or failed */
  uint64_t held[SN_TIERS]; /* of the block, by each tier, now */
  int32_t outcome;      /* SN_MOVE_DONE ... */
  int32_t error;        /* positive errno of what failed first */
  uint64_t target;      /* tier to which it went: the job's target or its spare one */
  uint64_t bound;       /* 1: pages of the block that nobody has touched are born where it went, see
                         * sn_mover_bind_untouched */
} sn_moved;

typedef struct sn_held {
  uint64_t bytes[SN_TIERS]; /* by each tier, now */
  uint64_t high_bytes[SN_TIERS]; /* most since the last mark */
  uint64_t slow_high_bytes; /* of all tiers but the fast one together */
  uint64_t in_flight_bytes; /* counted in two tiers */
  uint64_t most_fast_bytes; /* since it was created */
  uint64_t overflow_bytes;  /* taken by force beyond the capacity of the fast tier, added up */
  uint64_t overflows;
  uint64_t starved; /* 1: a promotion waits for room now */
  uint64_t slow_overflow_bytes; /* taken beyond the capacities of slower tiers, added up */
} sn_held;

/* What transfers of emulated jobs copied, out of the spans of their jobs into scratch memory that nobody reads. Live pages
 * are only ever read, through system calls: what is not mapped is refused, not touched. */
typedef struct sn_copied {
  uint64_t copied_bytes;
  uint64_t absent_bytes;  /* in pages that nobody has touched: there is nothing to copy */
  uint64_t refused_bytes; /* not mapped any more, or the system lets nobody copy */
  uint64_t cpu_ns;        /* processor time of the workers meanwhile */
  uint64_t error;         /* positive errno of the first that was refused */
} sn_copied;

SN_API int sn_mover_create(uint64_t fast_capacity_bytes, int half_duplex, sn_mover **out);
/* Queued jobs are dropped, running ones cut short. NULL is fine. */
SN_API int sn_mover_destroy(sn_mover *mover);
/* As sn_mover_destroy, and *mover is NULL before anything is freed: to be called again after whatever cut it short. */
SN_API int sn_mover_close(sn_mover **mover);
/* Id of the job, counted from 1, or -errno. */
SN_API int64_t sn_mover_submit(sn_mover *mover, const sn_job *job);
/* Several at once, in this order: the id of the first, the others count on from it; or -errno, and none is submitted. */
SN_API int64_t sn_mover_submit_all(sn_mover *mover, const sn_job *jobs, uint64_t count);
/* 1: it had not started and never will (it ends as SN_MOVE_CANCELLED); 0: it has started or ended. */
SN_API int sn_mover_cancel(sn_mover *mover, uint64_t id);
/* 0: it has ended; -ETIMEDOUT; -ENOSPC: it waits for room that no demotion is going to free. */
SN_API int sn_mover_wait(sn_mover *mover, uint64_t id, uint64_t timeout_ns);
/* Takes at most `count` results of ended jobs, oldest first; returns how many. */
SN_API uint64_t sn_mover_results(sn_mover *mover, sn_moved *out, uint64_t count);
/* At most `count` of them from the `first`-th on that has ended, 0 being the first of all: these stay, to be told again,
 * so that whatever cuts their reader short loses none. Those before are dropped. */
SN_API uint64_t sn_mover_results_from(sn_mover *mover, uint64_t first, sn_moved *out, uint64_t count);
/* Address of the number of jobs that have ended, to look at without a call. */
SN_API const uint64_t *sn_mover_ended(const sn_mover *mover);
/* Address of the number of jobs that were submitted, and so the id of the last: to know, before a call and whatever cuts
 * it short, which ids its jobs have, and afterwards whether they were submitted. */
SN_API const uint64_t *sn_mover_submitted(const sn_mover *mover);
/* Address of a number that grows whenever bytes of a tier were taken or given back: while it stays, so do `bytes` of
 * sn_held, and the marks that were restarted with them. */
SN_API const uint64_t *sn_mover_changes(const sn_mover *mover);

/* Takes fast room for a birth: 0; -ETIMEDOUT; -ENOSPC: no demotion is going to free enough. */
SN_API int sn_mover_reserve(sn_mover *mover, uint64_t nbytes, uint64_t timeout_ns);
/* Takes it though there is none: the excess is counted as overflow. */
SN_API int sn_mover_force(sn_mover *mover, uint64_t nbytes);
/* Gives fast room back. */
SN_API int sn_mover_release(sn_mover *mover, uint64_t nbytes);
/* Bytes born (positive) and dead (negative) in a slower tier; what it has no room for counts as overflow. */
SN_API int sn_mover_hold(sn_mover *mover, int tier, int64_t nbytes);
/* Bytes born in a slower tier: 0; -ENOSPC where it has no room for them. */
SN_API int sn_mover_take_in(sn_mover *mover, int tier, uint64_t nbytes);
/* Of one tier; slower ones have no limit at first. What a tier holds beyond it counts as overflow. Demotions wait for
 * room in a slower one while promotions make some; without any they go to their spare tier. */
SN_API int sn_mover_set_capacity(sn_mover *mover, int tier, uint64_t nbytes);
/* Node jobs: a page that nobody has touched cannot move. While this is asked for (`whether`; at first it is not), a job that
 * meets such pages gives all its spans the memory policy "preferably on its node", by which they are born, and says so:
 * `bound`. Whoever asks for it gives the addresses another policy when the block no longer has them. */
SN_API int sn_mover_bind_untouched(sn_mover *mover, int whether);
/* Copies the accounts; the high-water marks restart from now if `restart`. */
SN_API int sn_mover_held(sn_mover *mover, sn_held *out, int restart);
/* Forks of this process since it made its first mover, failed ones too. A page that is written after one, while the child shares
 * it, is a new page on the node of its memory policy, wherever the old one had been moved to. */
SN_API uint64_t sn_fork_count(void);
/* What was copied since the mover was created. */
SN_API int sn_mover_copied(sn_mover *mover, sn_copied *out);
/* Pages that stayed, by errno; `out` has SN_ERRNO_COUNT entries. */
SN_API int sn_mover_errors(sn_mover *mover, uint64_t *out);

/* Sleeps until CLOCK_MONOTONIC `deadline_ns`, the last stretch spinning: never early, late by under a
 * microsecond on an idle CPU. -EINTR: a signal came; go on by calling again. */
SN_API int sn_sleep_until(uint64_t deadline_ns);
/* The same without spinning and in spite of signals; 0 or -errno. */
SN_API int sn_nap_until(uint64_t deadline_ns);

/* ---- arm*.cpp: memory whose pages can be made to fault again ---------------------------- */

/* Between sn_arm_back and sn_arm_unback the bytes of a range lie in a memfd, mapped shared at the same
 * address; before and after, in private memory. Both change what is under live addresses. `guarded`: stores of other
 * threads wait meanwhile, and none is lost, but for those of devices and system calls that pinned a page before (direct
 * I/O, io_uring's fixed buffers); so no caller may hold a lock, nor the GIL, that a waiting thread needs to be woken:
 * none is needed. Not guarded: no other thread may write to the range meanwhile (reading is fine). Only ranges of the
 * exclusive arena and of sn_arm_map are taken, else -EPERM: whatever else is mapped may not survive. Before a
 * fork in between all ranges get private memory again, as by sn_arm_unback, and the watch ends; where that fails, or
 * another thread forks than allocates and they are not guarded, the child gets a copy before its parent goes on. After
 * a failed call every byte reads as before, all
 * threads go on, and the call may be repeated. */
#define SN_ARM_RANGES 8

/* 0 if threads can be held back here, else -errno: it needs userfaultfd for faults inside system calls too, and
 * /proc/self/pagemap. -EOPNOTSUPP: the kernel is too old (5.13 is not). */
SN_API int sn_arm_guarded(void);

/* Private memory of its own that may be backed: for tests and known workloads. */
SN_API int sn_arm_map(uint64_t nbytes, uint64_t *base);
SN_API int sn_arm_unmap(uint64_t base); /* -EBUSY while it is backed */
/* Whole pages. Of the exclusive arena give the whole reservation: what is allocated later is watched too. -ENOLCK: as
 * sn_memory_create. */
SN_API int sn_arm_back(uint64_t base, uint64_t nbytes, int guarded);
/* Memory that a container leaves to this process: of it, as of what the host has free, at most a quarter is prepared
 * ahead. Until it is told: all there is. UINT64_MAX: no limit. */
SN_API void sn_arm_room(uint64_t nbytes);
SN_API int sn_arm_unback(void); /* all ranges; -EBUSY while touches are watched */
/* The ranges in the order in which the touch table holds them; -ENOENT beyond the last. */
SN_API int sn_arm_range(int index, uint64_t *base, uint64_t *nbytes);

/* ---- touch.cpp, touch_*.cpp: which pages of the backed ranges were touched, layer by layer ------------ */

/* TABLE: somebody else (an eBPF program) fills the table. The others are this library's readers. */
enum { SN_TOUCH_TABLE = 0, SN_TOUCH_PAGEMAP, SN_TOUCH_PERF, SN_TOUCH_UFFD };
/* What was seen of a page in a layer; SN_TOUCHED alone: the reader can't tell which. */
enum { SN_TOUCHED_READ = 1, SN_TOUCHED_WRITE = 2, SN_TOUCHED = 4 };
enum { SN_IN_GRANULE = 8 }; /* beside those: the run is a granule, touched somewhere, by one fault */

typedef struct sn_touch_run {
  uint64_t page; /* address / 4096 */
  uint64_t npages;
  int32_t layer;
  uint32_t seen;
} sn_touch_run;

typedef struct sn_touch_state {
  uint64_t unit_pages; /* touches are told apart no finer than this */
  uint64_t lost;
  uint64_t late;
  uint64_t sees_system_calls;
  /* While the exclusive arena is watched, what is freed rests until sn_tick, so that no page has two tenants in a
   * layer, but for tensors born, written and freed in it that follow each other: the peak of live bytes in whole
   * pages, that of live, resting and such ones, and what was given up early. */
  uint64_t live_peak_bytes;
  uint64_t held_peak_bytes;
  uint64_t given_up_bytes;
} sn_touch_state;

/* The next watch tells touches in tensors of at least `tensor_bytes`, and in sn_arm_map's ranges of as much, in granules
 * of a huge page (2 MiB), but for what does not fill one; their other pages, and 0: all, one by one. */
SN_API int sn_touch_granules(uint64_t tensor_bytes);
/* `table`: two bytes a page, {read, written}, set by faults and cleared here; ranges in their order, each from
 * a multiple of four pages on. NULL but for SN_TOUCH_TABLE. Pages beyond `n_pages` are not told. */
SN_API int sn_touch_start(int kind, void *table, uint64_t n_pages);
/* Touches until the next mark belong to `layer`; -1: to none. At a quiescent point; arms all that is mapped.
 * -ECANCELED, here and once of sn_touch_stop: a fork has ended the watch. */
SN_API int sn_touch_mark(int32_t layer);
SN_API int sn_touch_stop(void);
/* Copies runs [first, first + count) in the order of marks, then addresses; `out` NULL: how many there are from first. */
SN_API uint64_t sn_touch_runs(uint64_t first, uint64_t count, sn_touch_run *out);
/* Hands the runs over: where they are and how many; the library has none afterwards. Returns what to give to
 * sn_touch_drop when they are not needed any more; NULL for want of memory, with nothing changed. Once the watch has
 * ended. */
SN_API void *sn_touch_take(sn_touch_run **runs, uint64_t *count);
SN_API void sn_touch_drop(void *taken);
SN_API void sn_touch_quality(sn_touch_state *out);

/* ---- device_pins.cpp -------------------------------------------------------------------------------------------- */

/* 1: the driver of a GPU has memory of [address, address + nbytes) registered, and reads and writes it by the pages that
 * it had then. 0: not so, or no driver that is asked (CUDA's) is loaded. Nothing is loaded or initialised for it. */
SN_API int sn_device_pins(uint64_t address, uint64_t nbytes);

/* ---- frames*.cpp: memory of a fixed amount that shows a larger range of addresses, the rest in a file --------- */

/* Addresses come in granules of 2 MiB, memory in frames of as much. A granule that is resident shows a frame; one that is
 * away shows its bytes in a file without a name, read by the kernel where they are touched: right, but slowly. Loads
 * from any thread, and system calls that read, find the right bytes at every moment. So do stores: while a granule is
 * turned over they wait, some microseconds, in a handler of SIGSEGV. A system call that writes into a granule in those
 * microseconds gets EFAULT, or stops short, instead. Not covered: what the kernel has pinned (direct I/O into or out of a
 * granule under way, process_vm_readv and _writev, devices that sn_frames_ask_pins does not tell of), and threads that block
 * SIGSEGV.
 *
 * fork: the child sees all as it was then, in the file, while its parent goes on; the fork writes what is not yet in the
 * file. A child's frames are inert: calls give -ECHILD. A child made by a bare clone() has no mapping there at all. */
typedef struct sn_frames sn_frames;

#define SN_FRAME_BYTES (2u << 20)

enum { SN_FRAMES_BUFFERED = 1, SN_FRAMES_SMALL_PAGES = 2 }; /* not past the page cache; no huge pages */
enum {
  SN_GRANULE_ABSENT = 0, /* addresses only */
  SN_GRANULE_DIRTY,      /* shows its frame, which the file does not hold */
  SN_GRANULE_CLEAN,      /* shows its frame, which the file holds too; a store makes a page of its own */
  SN_GRANULE_UNSAVED,    /* the same, but the file does not hold it: a write-out failed */
  SN_GRANULE_LEAVING,    /* the frame is being written out */
  SN_GRANULE_AWAY,       /* shows the file */
  SN_GRANULE_ARRIVING    /* shows the file, while a frame is being filled from it */
};

typedef struct sn_frames_request {
  const char *directory; /* of the file */
  uint32_t frames;       /* memory */
  uint32_t granules;     /* addresses */
  uint32_t regions;      /* file; one is taken by each granule that is not absent. It grows by what forked children read */
  uint32_t readers, writers; /* threads that do transfers, 1 to 16 of each */
  uint32_t flags;
  uint32_t filled;       /* frames that have memory at first; 0: all */
} sn_frames_request;

typedef struct sn_frames_facts {
  uint64_t base;        /* address of granule 0 */
  uint64_t pool_bytes;  /* memory of frames that the kernel has given, by its own account */
  uint32_t frames, granules, regions; /* frames that have memory now */
  uint32_t huge_frames; /* of one huge page each */
  uint32_t direct;      /* 1: transfers pass the page cache by */
  uint32_t unnamed;     /* 1: the file never had a name */
  uint32_t promised;    /* 1: the file system has set its room aside */
  uint32_t reserved;
} sn_frames_facts;

typedef struct sn_frames_counters {
  uint64_t free_frames, free_regions;
  uint64_t in_state[SN_GRANULE_ARRIVING + 1]; /* granules */
  uint64_t read_bytes, written_bytes;         /* of the file, by transfers */
  uint64_t carried_pages;   /* written to while on their way, found and kept */
  uint64_t given_up;        /* write-outs that ended with the granule resident, since it was written to meanwhile */
  uint64_t waited;          /* stores that waited in the handler */
  uint64_t dropped;         /* granules that left without being written: the file held them already */
  uint64_t fork_bytes;      /* written for forks */
  uint64_t generations;     /* forks whose children may still read the file */
  uint64_t own_pages;       /* of 4 KiB beside the frames, made by stores into what is clean or away; when last looked for */
  uint64_t most_own_pages;  /* that a look has found */
  uint64_t unread_bytes;    /* that were away, and needed no reading, since they were to be zero */
  uint64_t kept;            /* granules that stay resident, since stores nobody announced came again and again */
  uint64_t failed_reads, failed_writes; /* pieces of transfers that the disk, or a limit, refused */
  uint64_t read_failure, write_failure; /* positive errno of the last of each */
  uint64_t pinned;          /* granules that stay as they are, since a device has pages of theirs */
  uint64_t file_full;       /* times that a granule was to have a region, and none was free */
} sn_frames_counters;

typedef struct sn_frames_result {
  uint64_t moved;  /* granules that left, or arrived */
  uint64_t stayed; /* that were to, and did not */
  uint64_t start_ns, stop_ns; /* of the transfer */
  int32_t error;   /* positive errno of what failed first; EAGAIN: written to meanwhile; ECANCELED */
  uint32_t reserved;
} sn_frames_result;

/* 0, or -errno with what was tried in *step, a text that lasts. -EMEDIUMTYPE: the directory is in memory itself. */
SN_API int sn_frames_create(const sn_frames_request *request, sn_frames **out, const char **step);
/* -EBUSY while a granule is not absent. Nothing of another thread may be under way. */
SN_API int sn_frames_destroy(sn_frames *frames);
SN_API int sn_frames_facts_of(sn_frames *frames, sn_frames_facts *out);
SN_API int sn_frames_count(sn_frames *frames, sn_frames_counters *out);
SN_API int sn_frames_states(sn_frames *frames, uint32_t first, uint32_t count, uint8_t *out);

/* Granules [first, first + count) that are absent become dirty, with any bytes. Others leave for their frames, those that
 * were needed longest ago. -ENOSPC: not enough frames or file; nothing is attached then. */
SN_API int sn_frames_attach(sn_frames *frames, uint32_t first, uint32_t count);
/* They become absent. What is under way there ends before, and is not begun any more: it counts as cancelled. */
SN_API int sn_frames_release(sn_frames *frames, uint32_t first, uint32_t count);
enum {
  SN_READS = 0,
  SN_WRITES,    /* or may */
  SN_ZEROES /* each byte, before any is read: granules that lie in the range as a whole come as zeros */
};
/* All granules of [address, address + nbytes) are resident when it returns, dirty if written to; others leave for them.
 * -ENOSPC: they do not fit. -EIO and others: as the disk said; nothing is lost, and what could come has come. Here and in
 * sn_frames_attach, pages that stores have made beside the frames are taken into frames, down to a 128th of all. */
SN_API int sn_frames_need(sn_frames *frames, uint64_t address, uint64_t nbytes, int writes);
/* Takes in pages that stores have made beside the frames, and does nothing else. The stores are foreseen: they make no granule stay. `at_once`: looks, whatever the kernel counts. */
SN_API int sn_frames_tidy(sn_frames *frames, int at_once);
/* Whether a device has pages of [address, address + nbytes): not 0 if so. From any thread, also with locks held. */
typedef int (*sn_pinned)(uint64_t address, uint64_t nbytes);
/* From now on `pins` (NULL: nobody) is asked before a granule shows other pages than it did. One of which a device has
 * pages keeps them until it is released: the device would go on reading and writing those. */
SN_API int sn_frames_ask_pins(sn_frames *frames, sn_pinned pins);
/* Of the granules that stay resident, since stores nobody announced came again and again, no more than `most` do. */
SN_API int sn_frames_keep(sn_frames *frames, uint32_t most);

/* So many frames have memory when it returns: of those beyond, granules leave, needed longest ago first, and the memory goes
 * back to the kernel; those that are missing get memory again. Where it fails, as many as could: -EINVAL for 0, -ENOSPC for
 * more than were asked for at first or for want of memory, others as the disk said. */
SN_API int sn_frames_resize(sn_frames *frames, uint32_t wanted);

/* Transfers in the background: those of the granules that are resident leave, or those that are away arrive. Returns an id
 * for sn_frames_collect, or -errno: -ENOSPC: not enough free frames (nobody leaves for them) or regions. */
SN_API int64_t sn_frames_leave(sn_frames *frames, uint32_t first, uint32_t count);
SN_API int64_t sn_frames_arrive(sn_frames *frames, uint32_t first, uint32_t count, int writes);
/* What no thread has begun stays where it is. Still to be collected. -ENOENT: no such id. */
SN_API int sn_frames_cancel(sn_frames *frames, uint64_t id);
/* Turns over what was transferred: to be called where no system call of one's own writes there. -ETIMEDOUT: not yet. */
SN_API int sn_frames_collect(sn_frames *frames, uint64_t id, uint64_t timeout_ns, sn_frames_result *out);

/* ---- framed_tensors.cpp: tensors that live in frames, without a plan ---------------------------------- */

/* The least tensor of a session's, for sn_framed_begin: of sn_allocate, from any thread, smaller ones come from malloc, and
 * so do those that find no frames. */
#define SN_FRAMED_LEAST_BYTES (1u << 20)

typedef struct sn_framed_operand {
  uint64_t address;
  uint64_t nbytes;
  int32_t writes; /* SN_READS, SN_WRITES or SN_ZEROES */
  uint32_t reserved;
} sn_framed_operand;

typedef struct sn_framed_counters {
  sn_frames_counters frames; /* at the end, the last ones */
  uint64_t tensors;          /* that were given memory */
  uint64_t live_bytes, peak_live_bytes;
  uint64_t refused, refused_bytes;     /* found no frames, no addresses or no file */
  uint64_t needs, need_ns;             /* operators with operands here, and what they waited for them */
  uint64_t too_large, too_large_bytes; /* operators whose operands do not fit in all frames together; the most */
  uint64_t sliced;                     /* elementwise operators that ran slice by slice instead */
  uint64_t failed;                     /* operands that could not be brought in, and operators without memory for theirs */
  int32_t refused_error, failure;      /* positive errno of the last of each */
  char too_large_by[128];              /* the first such operator */
} sn_framed_counters;

/* From now on tensors live in these frames, which are the library's: it destroys them once sn_framed_end was called and
 * no tensor is left. `*frames` is NULL then, so that whoever is interrupted in this call knows whose they are.
 * `least_bytes`: of a tensor that comes here. -EINVAL: that is 0; -EBUSY: those of earlier frames still live. */
SN_API int sn_framed_begin(sn_frames **frames, uint64_t least_bytes);
/* Tensors come from elsewhere from now on. 0: all is gone; 1: some live on, and are brought in where they are needed. */
SN_API int sn_framed_end(void);
SN_API int sn_framed_any(void); /* 1: there are frames, of this process */
SN_API int sn_framed_contains(uint64_t address);
/* Brings in what an operator is about to use, all of it in frames. 1: it does not fit, and the operator goes without; what
 * it stores beside the frames is taken in as it comes, by a thread, until sn_framed_done is called for it. 2: until
 * sn_framed_ran is called for it, what is read ahead is turned over while it runs. Else 0. */
SN_API int sn_framed_need(const sn_framed_operand *operands, uint64_t count, const char *name);
SN_API void sn_framed_done(void);
SN_API void sn_framed_ran(void);
/* An elementwise operator is about to use so many operands, new ones among them, which lie in so many granules: how many
 * bytes of each it should use at a time, `unit` times a power of two, so that all take about an eighth of the frames. 0: all
 * at once, since they take no more than half of the frames, or since there are too few frames even for `unit` of each. */
SN_API uint64_t sn_framed_slice(uint64_t granules, uint32_t operands, uint64_t unit);
/* An elementwise operator runs slice by slice. */
SN_API void sn_framed_sliced(void);
SN_API int sn_framed_count(sn_framed_counters *out);

/* ---- framed_steps.cpp: a recorded step, by which what later steps need is read ahead ----------------------------- */

typedef struct sn_framed_ahead {
  uint64_t steps, recorded;   /* begun; of them recorded as a whole */
  uint64_t operators, uses;   /* of the record: of granules, one for each operator with them; 0: there is none yet */
  uint64_t matched, missed;   /* operators of later steps that were found in the record; that were not, or were left out */
  uint64_t hit_bytes, late_bytes; /* read ahead: there when needed; still on their way */
  uint64_t vain_bytes;        /* that left, or died, before they were needed */
  uint64_t demanded_bytes;    /* read because an operator waited for them */
  uint64_t unforeseen;        /* touched while away, by nobody who announced it: each granule once between two operators */
  uint64_t expected;          /* of these, uses that this step is to have too, for which granules are read ahead */
  uint64_t wait_before_ns, wait_after_ns; /* of operators and allocations: in the last step without a record, with one */
  uint32_t follows;           /* 1: the job is where the record says */
  uint32_t too_long;          /* 1: a step has too many uses, so none is recorded */
  uint64_t under_way;         /* granules whose transfer is not over */
  uint64_t read_alone_bytes, read_alone_ns;   /* the fastest 16 MiB of reads with no write under way; 0: never so many */
  uint64_t write_alone_bytes, write_alone_ns; /* the same of writes */
  uint64_t read_lately_bytes, read_lately_ns, write_lately_bytes, write_lately_ns; /* the last 256 MiB, or 16 that took 2 s */
} sn_framed_ahead;

/* A training step begins. The first one that is whole is recorded, and again one after a step that was another. Later
 * operators that are found in the record have what follows them read ahead, and what is needed last leaves first. */
SN_API int sn_framed_step(void);
SN_API int sn_framed_ahead_count(sn_framed_ahead *out);
/* What a whole step used, in as many operators and uses as sn_framed_ahead_count told: -EAGAIN if they are others by now,
 * -ENODATA if there are none. The first operator is what comes before any. `compute_ns`: of each, without waits;
 * `first_use`: of each, and one more. `kind`: bits of SN_USE_*. */
enum { SN_USE_READS = 1, SN_USE_WRITES = 2, SN_USE_BORN = 4, SN_USE_DIED = 8 };
SN_API int sn_framed_recorded(uint64_t operators, uint64_t uses, uint64_t *compute_ns, uint64_t *first_use,
                              uint32_t *granule, uint8_t *kind);

/* ---- framed_cap.cpp, taken.cpp: how many frames there are, so that the whole process stays within a cap ----------- */

/* A memory cgroup, with all that is in it: files with its limit and what it holds; memory.stat, and the names there of file
 * pages that nobody uses, and of those in use: what these have grown by since the first look can go too. */
typedef struct sn_framed_group {
  const char *limit, *used, *stat, *idle, *busy;
} sn_framed_group;

typedef struct sn_framed_cap {
  uint64_t cap_bytes;   /* of this process and its descendants, frames included */
  uint64_t spare_bytes; /* of it, that stays free: for what is taken between two looks */
  uint32_t least_frames, most_frames;
  const sn_framed_group *groups; /* or of memory cgroups, each around this process; none: cap_bytes counts */
  uint32_t n_groups;
  uint32_t sharers; /* processes that each follow these cgroups */
} sn_framed_cap;

typedef struct sn_framed_cap_counters {
  uint64_t looks;
  uint64_t taken_bytes, most_taken_bytes; /* beside the frames, when last looked at; the most */
  uint64_t over_bytes;                    /* the most by which least_frames and the rest exceeded the cap */
  uint64_t failed;                        /* looks after which frames could not become as many as they were to be */
  uint32_t frames, least_frames, most_frames; /* with memory: now, ever */
  uint32_t huge_frames;                   /* of one huge page each, now */
  int32_t failure;                        /* positive errno of the last one */
} sn_framed_cap_counters;

/* From now on the frames of sn_framed_begin become fewer as other memory grows, and more again: before operators, and
 * allocations of tensors that come here, at most every 100 ms, and taking at most a hundredth of the time. Ends with the frames.
 * -EINVAL. */
SN_API int sn_framed_follow(const sn_framed_cap *cap);
/* The next operator or allocation looks, and at everything, however short ago another one did. */
SN_API void sn_framed_look(void);
SN_API int sn_framed_cap_count(sn_framed_cap_counters *out);
/* What this process and its descendants take: resident pages, each counted once, and page tables; without `frames_bytes`
 * of shared memory. -EOPNOTSUPP: the kernel does not tell. */
SN_API int64_t sn_taken_bytes(uint64_t frames_bytes);

/* ---- calibrate.cpp: what this host's memory takes ----------------------------------------------------- */

/* READ, WRITE (ordinary stores: a line is read before it is written) and UPDATE (each line read and written in
 * place) stream over the range again and again; CHASE follows the addresses that sn_chase_link left in it; MOVE
 * takes its pages to `node` once, by a mover of its own. */
enum { SN_MEASURE_READ = 0, SN_MEASURE_WRITE, SN_MEASURE_UPDATE, SN_MEASURE_CHASE, SN_MEASURE_MOVE };

/* What one thread does. Ranges are whole cache lines of 64 bytes; MOVE: whole pages. */
typedef struct sn_work {
  uint64_t base;
  uint64_t nbytes;
  uint64_t start; /* CHASE: address to go on from; 0: base */
  int32_t cpu;    /* the thread runs there; -1: where the caller may */
  int32_t node;
  uint32_t kind;
  uint32_t reserved;
} sn_work;

typedef struct sn_pace {
  uint64_t start_ns;
  uint64_t stop_ns;
  uint64_t bytes; /* read and written, added up; MOVE: moved */
  uint64_t loads; /* CHASE */
  uint64_t at;    /* CHASE: where to go on from */
  uint64_t busy_ns; /* of the time, what the thread had its CPU; 0 for MOVE */
  int32_t error;  /* MOVE: errno of the first page that stayed, else 0 */
  uint32_t reserved;
} sn_pace;

/* Starts all threads at once and returns when all have ended: MOVE when the pages are there, the others after
 * `duration_ns`. Fails before any has begun: -EINVAL for a bad range, or what a thread's start said. */
SN_API int sn_measure(const sn_work *works, uint32_t count, uint64_t duration_ns, sn_pace *out);
/* Writes into each cache line of the range the address of another: one random cycle through all of them. */
SN_API int sn_chase_link(uint64_t base, uint64_t nbytes, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
