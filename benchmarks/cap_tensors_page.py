"""docs/cap.md from results of before caps were on the whole process: those of 2026-11-23. It goes with them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

_HEAD = """# Training in less memory than the tensors need

`python -m benchmarks.cap --directory DIR{swap} --into docs/cap.json`, {when}: {cores} cores of an {cpu}, {memory:.0f}
GiB, Linux {kernel}, torch {torch}. A GPT-2 of {layers}×{width}, batch {rows}×{columns}, AdamW; its tensors take
{peak:,.0f} MiB at their peak. The disk alone, {disk_how}:
{read:.1f} GB/s read, {write:.1f} GB/s written.
Processes take turns of {turn} steps, of which the last counts, {rounds} turns each after two that do not
count; medians, least and most in brackets. Figures in [cap.json](cap.json).

Shares are of the peak of the tensors, {peak:,.0f} MiB, and not of the process, which takes more: no cap on the process
was set, and under one of 41 % of stock's peak tensors get less than here. The vocabulary is GPT-2's own, 50,257 tokens.
There is no bound beside the steps: the one in a session's report ("at least") is never above the fastest step that the
session has seen, so it does not say how far these steps are from it. The command measures caps on the process beside
such a bound by now; what it finds is not there yet.

- *file*: `start_profile(fast=..., slow="file:DIR")` before the model is built, nothing else changed.
- *file, updates in backward*: the same with `overlap_optimizer=True`.
- *swap*: stock PyTorch in a memory cgroup that allows it what the *file* process took at its peak, page cache
  included, and the kernel's own swap in a file on the same disk.
- *over stock*: the median of the rounds' ratios, each of a step over one of stock PyTorch in the same round; it is not
  the ratio of the medians beside it.
- *read*, *written*: by the file tier, a step. *Waited*: what operators of a step waited for the disk. All three are
  means over both steps of the turns that count.

| memory of tensors | share of the peak | | step s | over stock | read MiB | written MiB | waited s |
| --- | --- | --- | --- | --- | --- | --- | --- |"""

_TAIL = """
{losses} While this ran, others had {others} of the processors.

Stock PyTorch gives memory back and takes it anew in each step; frames are huge pages that stay. That makes all ratios
smaller: {tuned}

The time that the budget adds to a step, over what swap adds:

{against}

Not measured: other models, a disk that is slower, and a process beside it that uses the disk too. The first steps are
slower: until a step was recorded, each operator waits for what it needs."""

_OTHER_PAGE = """stock steps of a GPT-2 of this size take 0.64 to 0.70 times as long with a malloc that keeps its memory
([costs](costs.md)). This was made before such a process took turns here, and before elementwise operators ran in slices
([decision 138](decisions/0138-elementwise-operators-too-large-run-in-slices.md))."""

_NAMES = {
    "stock": "stock",
    "tuned": "stock, malloc keeps its memory",
    "sentinel": "file",
    "overlap": "file, updates in backward",
    "swap": "swap",
}


def page(told: Mapping[str, Any]) -> str:
    """The page as Markdown. `told`: what the benchmark says."""
    return "\n".join(_lines(told)) + "\n"


def summary(told: Mapping[str, Any]) -> list[str]:
    """The README's paragraph."""
    found = told["results"][1]
    file, swap = (found["over_stock"][name] for name in ("sentinel", "swap"))
    text = (
        "A small GPT-2 whose tensors get 41 % of the memory that they need,"
        f" {found['sentinel_peak_bytes'] / 2**20:,.0f} MiB for the whole process, takes {file['median']:.2f} times as"
        f" long a step as stock PyTorch ({file['least']:.2f} to {file['most']:.2f}), and {swap['median']:.1f} times"
        f" with the kernel's swap ({swap['least']:.1f} to {swap['most']:.1f}), [measured](docs/cap.md) on a disk of 1"
        " to 2 GB/s. These 41 % are of the tensors' peak, not of the process's: caps on the process are not measured"
        " yet. Stock with a malloc that keeps its memory is a third faster ([costs](docs/costs.md)). Where the disk is"
        " slower than the step needs, training waits for it: [docs/storage.md](docs/storage.md)."
    )
    return textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False)


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    results, machine = told["results"], told["machine"]
    layers, width, rows, columns = told["shape"]
    yield _HEAD.format(
        swap=" --swap" if any("swap" in found["step_s"] for found in results) else "",
        when=told["when"],
        cores=machine["cores"],
        cpu=" ".join((machine["cpu"] or "unknown processor").split()[:2]),
        memory=(machine["memory_bytes"] or 0) / 2**30,
        kernel=machine["kernel"].split("-")[0],
        torch=told["versions"]["torch"],
        layers=layers,
        width=width,
        rows=rows,
        columns=columns,
        peak=results[0]["tensor_peak_bytes"] / 2**20,
        disk_how=told["disk"]["how"],
        read=told["disk"]["read_bytes_per_s"] / 1e9,
        write=told["disk"]["write_bytes_per_s"] / 1e9,
        turn=told["turn"],
        rounds=told["rounds"],
    )
    for found in results:
        for name, label in _NAMES.items():
            if name in found["step_s"]:
                yield f"| {' | '.join(_row(told, found, name, label))} |"
    yield _TAIL.format(
        losses="All losses of all processes are the same."
        if all(found["same_losses"] for found in results)
        else "**Losses differ.**",
        others=f"at most {max(found['others_share'] for found in results):.0%}",
        tuned=_OTHER_PAGE
        if "tuned" not in results[0]["over_stock"]
        else "the second row of each budget is without that.",
        against="\n".join(_against(found) for found in results),
    )


def _row(told: Mapping[str, Any], found: Mapping[str, Any], name: str, label: str) -> list[str]:
    ratio = found["over_stock"].get(name)
    over = "1" if ratio is None else f"{ratio['median']:.2f} [{ratio['least']:.2f}–{ratio['most']:.2f}]"
    one = found["processes"][name]
    moved = ["", "", ""]
    if one["storage"]:
        steps = told["rounds"] * told["turn"]
        read, written, waited = (
            (one["storage"][key] - one["born"][key]) / steps for key in ("read_bytes", "written_bytes", "waited_ns")
        )
        moved = [f"{read / 2**20:,.0f}", f"{written / 2**20:,.0f}", f"{waited / 1e9:.2f}"]
    share = found["budget_bytes"] / found["tensor_peak_bytes"]
    where = ["all it wants", ""] if name in ("stock", "tuned") else [found["budget"], f"{share:.0%}"]
    if name == "swap":
        where = [f"{found['sentinel_peak_bytes'] / 2**20:,.0f} MiB in all", ""]
    return [*where, label, f"{found['step_s'][name]:.2f}", over, *moved]


def _against(found: Mapping[str, Any]) -> str:
    shares = found.get("added_over_what_swap_adds")
    if shares is None:
        return f"- {found['budget']}: no swap, {found['no_swap']}"
    plain, overlap = (f"{share:.3f}" if share > 0 else "nothing is added" for share in shares.values())
    return f"- {found['budget']}: {plain}; with updates in backward {overlap}"
