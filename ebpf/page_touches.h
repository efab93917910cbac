/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Records that page_touches.bpf.c shares with user space (sentinel/profiler/pages/ebpf.py mirrors it). */
#ifndef PAGE_TOUCHES_H
#define PAGE_TOUCHES_H

#define TOUCH_RANGES 8

struct touch_range {
	__u64 first_page; /* address >> 12 */
	__u64 n_pages;
	__u64 first_cell; /* where its pages start in the table; a range starts in a cell of its own */
};

struct touch_control {
	__u64 ns_dev; /* of /proc/self/ns/pid, as the kernel encodes it */
	__u64 ns_ino;
	__u32 tgid;
	__u32 enabled;
	__u64 n_pages; /* in the table */
	__u32 n_ranges;
	__u32 reserved;
	struct touch_range ranges[TOUCH_RANGES];
};

struct touch_cell { /* the kernel pads array values to eight bytes, so four pages share one */
	struct {
		__u8 read;
		__u8 written;
	} page[4];
};

struct touch_totals { /* per processor: faults of the process in its ranges */
	__u64 user_reads;
	__u64 user_writes;
	__u64 kernel_reads;
	__u64 kernel_writes;
	__u64 beyond_table; /* lost: counted above, but had no cell */
};

#endif
