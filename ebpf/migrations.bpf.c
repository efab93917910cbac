// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Writes down every migration of a page in the watched ranges: its address, its old and its new frame, its reason.
 *
 * A witness of the engine that shares nothing with it: it sees what the kernel does, whoever asked for it. The
 * addresses come from the tracepoints migrate:{set,remove}_migration_pte and thp:{set,remove}_migration_pmd, which
 * know no reason; the reason comes from migrate:mm_migrate_pages, which ends the call in the same thread. User space
 * joins them. Reads only the tracepoints' own arguments, so it needs neither BTF nor tracefs. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "migrations.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The loader creates the maps with these shapes; max_entries of `records` is set there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct witness_control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct witness_record);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct witness_totals);
} totals SEC(".maps");

static __always_inline int is_own(struct witness_control *c)
{
	struct bpf_pidns_info pid = {};

	return !bpf_get_ns_current_pid_tgid(c->ns_dev, c->ns_ino, &pid, sizeof(pid)) && pid.tgid == c->tgid;
}

static __always_inline void record(struct witness_control *c, __u64 address, __u64 value, __u16 kind)
{
	__u64 number = __sync_fetch_and_add(&c->head, 1);
	__u32 zero = 0, key = number & (c->log_entries - 1);
	struct witness_record *r = 0;
	struct witness_totals *t;

	if (number - c->taken < c->log_entries)
		r = bpf_map_lookup_elem(&records, &key);
	if (!r) {
		t = bpf_map_lookup_elem(&totals, &zero);
		if (t)
			__sync_fetch_and_add(&t->lost, 1);
		return;
	}
	r->address = address;
	r->value = value;
	r->thread = (__u32)bpf_get_current_pid_tgid();
	r->kind = kind;
	r->own = is_own(c);
	/* an atomic store, for the fields above must be there when this one is */
	__sync_lock_test_and_set(&r->sequence, number + 1);
}

static __always_inline int page(__u64 address, __u64 entry, __u16 kind)
{
	struct witness_control *c;
	__u32 zero = 0;

	c = bpf_map_lookup_elem(&control, &zero);
	if (!c)
		return 0;
#pragma unroll
	for (int i = 0; i < WITNESS_RANGES; i++) {
		if (i >= c->n_ranges)
			break;
		if ((address >> 12) - c->ranges[i].first_page < c->ranges[i].n_pages) {
			record(c, address, entry, kind);
			break;
		}
	}
	return 0;
}

static __always_inline int batch(__u64 moved, __u64 failed, __u32 reason)
{
	struct witness_control *c;
	struct witness_totals *t;
	__u32 zero = 0, cell = reason < WITNESS_REASONS ? reason : WITNESS_REASONS - 1;

	c = bpf_map_lookup_elem(&control, &zero);
	t = bpf_map_lookup_elem(&totals, &zero);
	if (!c || !t)
		return 0;
	/* atomic, for a thread that preempts this one may count here too */
	__sync_fetch_and_add(&t->moved[cell], moved);
	__sync_fetch_and_add(&t->failed[cell], failed);
	if (c->n_ranges)
		record(c, moved, reason, WITNESS_BATCH);
	return 0;
}

SEC("raw_tp/set_migration_pte")
int set_page(struct bpf_raw_tracepoint_args *ctx)
{
	return page(ctx->args[0], ctx->args[1], WITNESS_SET_PAGE);
}

SEC("raw_tp/remove_migration_pte")
int remove_page(struct bpf_raw_tracepoint_args *ctx)
{
	return page(ctx->args[0], ctx->args[1], WITNESS_REMOVE_PAGE);
}

SEC("raw_tp/set_migration_pmd")
int set_huge(struct bpf_raw_tracepoint_args *ctx)
{
	return page(ctx->args[0], ctx->args[1], WITNESS_SET_HUGE);
}

SEC("raw_tp/remove_migration_pmd")
int remove_huge(struct bpf_raw_tracepoint_args *ctx)
{
	return page(ctx->args[0], ctx->args[1], WITNESS_REMOVE_HUGE);
}

/* Between 6.1 and 6.12 large_folio_split came before the mode. The kernel refuses to attach a program that reads more
 * arguments than there are, so the loader tries this one first. */
SEC("raw_tp/mm_migrate_pages:8")
int batch_of_eight(struct bpf_raw_tracepoint_args *ctx)
{
	return batch(ctx->args[0], ctx->args[1], ctx->args[7]);
}

SEC("raw_tp/mm_migrate_pages:7")
int batch_of_seven(struct bpf_raw_tracepoint_args *ctx)
{
	return batch(ctx->args[0], ctx->args[1], ctx->args[6]);
}
