/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Records that migrations.bpf.c shares with user space (sentinel/migration/witness.py mirrors it). */
#ifndef MIGRATIONS_H
#define MIGRATIONS_H

#define WITNESS_RANGES 16
#define WITNESS_REASONS 16 /* enum migrate_reason has ten today; the last cell takes any beyond */

enum witness_kind {
	WITNESS_SET_PAGE = 1, /* a page's entry gives way to a migration entry, which holds the old frame */
	WITNESS_REMOVE_PAGE, /* the migration entry gives way to one that holds the new frame, or the old if it failed */
	WITNESS_SET_HUGE,
	WITNESS_REMOVE_HUGE,
	WITNESS_BATCH, /* the thread's call of migrate_pages() ends: this was the reason of the records before */
};

struct witness_range {
	__u64 first_page; /* address >> 12 */
	__u64 n_pages;
};

struct witness_control {
	__u64 ns_dev; /* of /proc/self/ns/pid, as the kernel encodes it */
	__u64 ns_ino;
	__u32 tgid;
	__u32 n_ranges;
	__u64 log_entries; /* a power of two */
	__u64 head; /* records ever begun */
	__u64 taken; /* records that user space has read */
	struct witness_range ranges[WITNESS_RANGES];
};

struct witness_record {
	__u64 sequence; /* one more than its number, written last: what else is there is stale or half written */
	__u64 address; /* of the page; of a batch: pages that moved */
	__u64 value; /* the page-table entry; of a batch: the reason */
	__u32 thread; /* of the initial namespace: only to tell threads apart */
	__u16 kind;
	__u16 own; /* whether the thread belongs to the watched process */
};

struct witness_totals { /* per processor, of the whole machine: each page that moved or failed, by reason */
	__u64 moved[WITNESS_REASONS];
	__u64 failed[WITNESS_REASONS];
	__u64 lost; /* records that found the log full */
};

#endif
