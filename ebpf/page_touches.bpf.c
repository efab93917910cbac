// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Counts which pages of a process fault, and whether to read or to write.
 *
 * Runs on the raw tracepoints exceptions:page_fault_user and :page_fault_kernel (faults that system calls
 * take in user memory). It reads only the tracepoints' own arguments, so one object loads on every kernel
 * that has them and needs neither BTF nor tracefs. Memory is bounded: two bytes a watched page, which user
 * space maps and clears at each tick; what falls beyond the table is counted as lost. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "page_touches.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The loader creates the maps with these shapes; max_entries of `seen` is set there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct touch_control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct touch_cell);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct touch_totals);
} totals SEC(".maps");

#define ERROR_WRITE 2 /* x86 and RISC-V's tracepoint alike: set for a write */

static __always_inline int count(__u64 address, __u64 error_code, int in_kernel)
{
	struct bpf_pidns_info pid = {};
	struct touch_control *c;
	struct touch_totals *t;
	struct touch_cell *cell;
	__u64 page = address >> 12, index = 0;
	__u32 zero = 0, key;
	int found = 0;

	c = bpf_map_lookup_elem(&control, &zero);
	if (!c || !c->enabled)
		return 0;
#pragma unroll
	for (int i = 0; i < TOUCH_RANGES; i++) {
		if (i >= c->n_ranges)
			break;
		if (page - c->ranges[i].first_page < c->ranges[i].n_pages) {
			index = c->ranges[i].first_cell * 4 + (page - c->ranges[i].first_page);
			found = 1;
			break;
		}
	}
	if (!found)
		return 0;
	/* the process as its own namespace numbers it: elsewhere the range means another memory */
	if (bpf_get_ns_current_pid_tgid(c->ns_dev, c->ns_ino, &pid, sizeof(pid)) || pid.tgid != c->tgid)
		return 0;
	t = bpf_map_lookup_elem(&totals, &zero);
	if (!t)
		return 0;
	if (error_code & ERROR_WRITE)
		in_kernel ? t->kernel_writes++ : t->user_writes++;
	else
		in_kernel ? t->kernel_reads++ : t->user_reads++;
	if (index >= c->n_pages) {
		t->beyond_table++;
		return 0;
	}
	key = index >> 2;
	cell = bpf_map_lookup_elem(&seen, &key);
	if (!cell) {
		t->beyond_table++;
		return 0;
	}
	/* bytes of their own, set and never read here: no atomics, nothing to race for */
	if (error_code & ERROR_WRITE)
		cell->page[index & 3].written = 1;
	else
		cell->page[index & 3].read = 1;
	return 0;
}

SEC("raw_tp/page_fault_user")
int user_fault(struct bpf_raw_tracepoint_args *ctx)
{
	return count(ctx->args[0], ctx->args[2], 0);
}

SEC("raw_tp/page_fault_kernel")
int kernel_fault(struct bpf_raw_tracepoint_args *ctx)
{
	return count(ctx->args[0], ctx->args[2], 1);
}
