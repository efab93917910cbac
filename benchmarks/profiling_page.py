"""docs/profiling.md from the results of benchmarks/profiling.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks._page_parts import processor, ratio

_HEAD = """# What a profiled step costs

`python -m benchmarks.profiling {settings}--into docs/profiling.json`, {when}: {cores} cores of an {cpu},
{memory:.0f} GiB, Linux {kernel}, torch {torch}, {threads} threads; rounds: {rounds}, a process each, in which the steps
take turns. A GPT-2 of {layers}×{width}, batch {rows}×{columns}, AdamW; a tick after every block, forward and
backward, and in the optimizer. Medians; ratios round by round, least and most in brackets. While a round ran, others
had {others} of the processors. Figures in [profiling.json](profiling.json).

- `stock`: torch alone, in the same run. `exclusive`: each tensor on pages of its own, nobody watching. `ops`: operators
  are recorded. The others: a page tracker watches as well, each page of 4 KiB by itself unless the name says `2MiB`.
- The watched step contains its marks: the moments between two layers in which pages are read out and armed again.
  *Start* and *stop* are before and after it: private memory becomes a file in memory (memfd), and private again.
- **In all**: start, watched step and stop, in stock steps: what watching costs, once a run. Stock is malloc, whose page
  faults an arena avoids; compare a watched step with `exclusive`, which avoids them too.

| step | wall s | over stock | processor time over stock | touches, thousands | written | start s | stop s | in all |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
_TAIL = """
Goal: the step alone with `ebpf` at most 1.5 of stock, better 1.25. All losses of all steps are the same, in whatever
order the variants ran: {alike}.

Pages of its own for each tensor take {overhead:.3%} more than the step's peak of {peak:,.0f} MiB (goal: at most 1.2 %).
Freed pages that are not used again before their layer ends take {rest} more at the peak of the profiled step; at most
25 % may be taken so, and beyond that were given back early: {given_up} bytes.

## How a step is watched

1. *Prepare*. The arena gets a memfd, in 2 MiB pages where this kernel lets each 4 KiB of such a page fault by itself
   ([0038](decisions/0038-huge-pages-only-where-they-fault-singly.md)), as large as the steps so far suggest
   ([0061](decisions/0061-memory-of-the-watched-step-is-prepared-before-it.md)). A session moves parameters and
   optimizer state from malloc straight into it, by up to eight threads
   ([0095](decisions/0095-tensors-move-straight-into-watched-memory.md)). In this benchmark they lie in private memory
   of the arena before, so its *start* has one copy more than a session's first.
2. *Hold other threads*. While memory changes its backing, a userfaultfd holds every thread that stores to it: private
   memory is write-protected, memory of the memfd is un-mapped
   ([0093](decisions/0093-threads-wait-while-memory-changes-its-backing.md)).
3. *Arm*, at each mark. The pages in use are un-mapped and keep their content in the memfd, so the next touch of each
   page faults. While the memory is registered with a userfaultfd, a read maps a page for reading only, so a later
   write faults again: that tells writes from reads. The tracker notes the faults; `pagemap` looks at the next mark
   which pages are mapped.
4. *Granules*. By `ebpf:2MiB` and the like one fault maps 2 MiB inside tensors of at least 8 MiB. That is the default
   where the tensors that outlive a step hold at least 16 GiB ([0037](decisions/0037-granules-are-huge-pages.md)).
5. *Stop*. The memory becomes private again. The 2 MiB chunks inside one tensor are copied into huge pages, but for
   chunks whose pages were not touched alike
   ([0097](decisions/0097-huge-pages-inside-tensors-once-nothing-watches.md)).

What a session takes from `start_profile()` to the first applied step, measured from outside: [costs.md](costs.md)."""
_CHANGED = "2026-11-22"
_OLDER = """
The figures above were made before several threads copied (1), before other threads were held (2) and before huge pages
came at the end (5), all on {changed}: *start* and *stop* are other today."""


def page(told: Mapping[str, Any], arguments: str) -> str:
    """The page as Markdown. `told`: what the benchmark prints; `arguments`: those that it was called with."""
    return "\n".join(_lines(told, arguments)) + "\n"


def _lines(told: Mapping[str, Any], arguments: str) -> Iterator[str]:
    results, settings, machine = told["results"], told["settings"], told["machine"]
    layers, width, rows, columns = settings["shape"]
    shares = results["others_share"]
    yield _HEAD.format(
        settings=f"{arguments} " if arguments else "",
        when=told["when"],
        cores=machine["cores"],
        cpu=processor(machine),
        memory=(machine["memory_bytes"] or 0) / 2**30,
        kernel=machine["kernel"].split("-")[0],
        torch=told["versions"]["torch"],
        threads=settings["threads"],
        rounds=settings["rounds"],
        layers=layers,
        width=width,
        rows=rows,
        columns=columns,
        others=_span([100 * share for share in shares], "{:.0f} %"),
    )
    for name, found in results["variants"].items():
        yield f"| {' | '.join([*_row(name, found), _in_all(name, results['variants'])])} |"
    resting = results["memory"]["resting"]
    yield _TAIL.format(
        alike="yes" if results["same_loss_whatever_the_order"] else "**no**",
        overhead=results["memory"]["overhead"],
        peak=results["memory"]["peak_bytes"] / 2**20,
        rest=_span([100 * found["overhead"] for found in resting.values()], "{:.1f} %") if resting else "nothing",
        given_up=max((found["given_up_bytes"] for found in resting.values()), default=0),
    )
    if told["when"] < _CHANGED:
        yield _OLDER.format(changed=_CHANGED)


def _row(name: str, found: Mapping[str, Any]) -> list[str]:
    ratios = [ratio(found[key]) if key in found else "–" for key in ("step_over_stock", "cpu_over_stock")]
    counts = [f"{found[key] / 1000:,.0f}" if found.get(key) is not None else "–" for key in _COUNTS]
    around = [f"{found[key] / 1e9:.2f}" if key in found else "–" for key in ("start_ns", "stop_ns")]
    return [f"`{name}`", f"{found['step_ns'] / 1e9:.2f}", *ratios, *counts, *around]


def in_all(found: Mapping[str, Any], stock: Mapping[str, Any]) -> float | None:
    """Start, watched step and stop, in stock steps. None where nothing is started."""
    if "start_ns" not in found:
        return None
    whole: float = (found["start_ns"] + found["step_ns"] + found["stop_ns"]) / stock["step_ns"]
    return whole


def _in_all(name: str, variants: Mapping[str, Any]) -> str:
    whole = in_all(variants[name], variants["stock"])
    return "–" if whole is None else f"{whole:.1f}"


_COUNTS = ("touched_pages", "written_pages")


def _span(values: list[float], form: str) -> str:
    least, most = form.format(min(values)), form.format(max(values))
    return least if least == most else f"{least} to {most}"
