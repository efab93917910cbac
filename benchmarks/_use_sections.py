"""Of docs/costs.md: what a user waits for before the first watched step, and for a large report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks._page_parts import Told, goal, headings, where


def first_use(told: Told) -> Iterator[str]:
    """Of `benchmarks.first_use`: a row a wheel."""
    yield (
        f"`python -m benchmarks.first_use WHEEL`, {where(told)} The README's first program by `sentinel run`, in a"
        " fresh environment with an empty cache, an emulated slow tier, and the packages of the checkout's environment."
        f" Seconds from the start of the process, medians of {told['rounds']} rounds, least and most in brackets."
        " *Watched*: the step is watched and planned for. *Importing torch*: that alone, in a process of its own."
        " *Compiling*: what the same command took less with its cache filled."
    )
    yield ""
    yield from headings(
        "wheel",
        "watched s",
        "importing torch s",
        "compiling s",
        "the rest s",
        "the step began s",
        "`--help` s",
        "others",
    )
    for each in told["results"]:
        found, rounds = each["medians"], each["rounds"]
        what = "brings what is compiled (`make wheel`)" if each["brings"] else "compiles at first use"
        watched = _spread(found["watched_s"], [turn["first"]["watched_s"] for turn in rounds])
        cells = [f"{found[name]:.1f}" for name in ("import_torch_s", "compiling_s", "rest_s", "begins_s")]
        cells += [f"{found['help_s']:.2f}", _percent([turn["others_share"] for turn in rounds])]
        yield f"| {' | '.join([what, watched, *cells])} |"
    yield ""
    goals = []
    for each in told["results"]:
        took, what = each["medians"]["watched_s"], "a wheel that brings it" if each["brings"] else "one that compiles"
        goals.append(
            goal(f"watched in at most {told['most_s']:.0f} s with {what} ({took:.1f})", took <= told["most_s"])
        )
    slowest = max(each["medians"]["help_s"] for each in told["results"])
    goals.append(goal(f"`--help` in at most {told['most_help_s']} s ({slowest:.2f})", slowest <= told["most_help_s"]))
    yield f"Goals: {'; '.join(goals)}. *Others*: what other work had of the processors while a round ran."


def report_page(told: Told) -> Iterator[str]:
    """Of `benchmarks.report_page`."""
    found, opened = told["results"], told["results"]["opened"]
    yield (
        f"`python -m benchmarks.report_page`, {where(told)} A made-up step of {told['tensors']:,} tensors over"
        f" {told['layers']:,} layers, whose names are all unlike, planned for a fifth of its footprint and simulated;"
        f" {found['migrations']:,} migrations. The page has {found['page_bytes'] / 1e6:.1f} MB and"
        f" {opened['elements']:,.0f} elements; to draw it from the files of the run takes {found['draw_s']:.1f} s."
        f" A Chromium that is running opens it from a file; ms from the start of the navigation, medians of"
        f" {told['rounds']}, least and most in brackets."
    )
    yield ""
    names = {
        "interactive_ms": "the document is read",
        "loaded_ms": "loaded",
        "drawn_ms": "drawn, and a click is answered",
        "mark_ms": "a click that marks a tensor, drawn",
        "sort_ms": "a click that sorts the slowest table, drawn",
        "filter_ms": "a word in the slowest filter, drawn",
    }
    yield from headings("what", "ms")
    for name, what in names.items():
        yield f"| {what} | {_spread(opened[name], [each[name] for each in found['rounds']], 0)} |"
    yield ""
    size, time = found["page_bytes"], opened["drawn_ms"]
    goals = (
        goal(f"at most {told['most_bytes'] / 1e6:.0f} MB ({size / 1e6:.1f})", size <= told["most_bytes"]),
        goal(f"drawn in at most {told['most_ms'] / 1e3:.0f} s ({time / 1e3:.2f})", time <= told["most_ms"]),
    )
    yield f"Goals: {'; '.join(goals)}."


def _spread(median: float, values: Sequence[float], digits: int = 1) -> str:
    return f"{median:,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def _percent(shares: Sequence[float]) -> str:
    least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return least if least == most else f"{least} to {most}"
