"""docs/profiling.md from the results of benchmarks/profiling.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_HEAD = """# What a profiled step costs

`python -m benchmarks.profiling {settings}--into docs/profiling.json`, {when}: {cores} cores of an {cpu},
{memory:.0f} GiB, Linux {kernel}, torch {torch}, {threads} threads; rounds: {rounds}, a process each, in which the steps
take turns. A GPT-2 of {layers}×{width}, batch {rows}×{columns}, AdamW; a tick after every block, forward and
backward, and in the optimizer. Medians; ratios round by round, least and most in brackets. While a round ran, others
had {others} of the processors. Figures in [profiling.json](profiling.json).

- `stock`: torch alone, in the same run. `exclusive`: its tensors in the profiling arena, nobody watching. `ops`:
  operators recorded. The others: pages watched too, as a session profiles; 4 KiB everywhere unless said.
- Marks, each layer's harvest included, are in the step. What happens before and after it is told apart: *start* moves
  the arena to shared memory and prepares as much more as earlier steps took; *stop* moves it back.
- **In all**: start, the watched step and stop, in stock steps: what watching costs, once a run. Stock is malloc, whose
  page faults an arena avoids; against `exclusive`, which avoids them too, a watched step takes relatively longer.

| step | wall s | over stock | processor time over stock | touches, thousands | written | start s | stop s | in all |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
_TAIL = """
Goal: the step alone with `ebpf` at most 1.5 of stock, better 1.25. All losses of all steps alike, whatever the order:
{alike}.

Pages of one's own cost {overhead:.3%} of the step's peak of {peak:,.0f} MiB (goal: at most 1.2 %). Freed pages that
rest take {rest} more at the peak of the profiled step; given up early: {given_up} bytes."""


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
        cpu=" ".join((machine["cpu"] or "unknown processor").split()[:2]),
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


def _row(name: str, found: Mapping[str, Any]) -> list[str]:
    ratios = [_ratio(found[key]) if key in found else "–" for key in ("step_over_stock", "cpu_over_stock")]
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


def _ratio(found: Mapping[str, Any]) -> str:
    spread = f" ({found['least']:.2f}–{found['most']:.2f})" if len(found["rounds"]) > 1 else ""
    return f"{found['median']:.2f}{spread}"


def _span(values: list[float], form: str) -> str:
    least, most = form.format(min(values)), form.format(max(values))
    return least if least == most else f"{least} to {most}"
