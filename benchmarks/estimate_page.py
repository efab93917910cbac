"""docs/estimate.md from the results of benchmarks/estimate.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks._page_parts import processor
from sentinel.core.units import format_bytes

_HEAD = """# How far an estimate is off

`python -m benchmarks.estimate --into docs/estimate.json`, {when}: {cores} cores of an {cpu}, Linux {kernel}, torch
{torch}, {threads} threads.

`sentinel estimate` says how much memory a training step takes from shapes alone. Here each example is recorded as it
trains as well, its second step, by operators. An error is estimate over recording, less one: a minus means that the
estimate is too low. *Peak*: the most memory of torch's allocator that is alive at once. *Step*, *layers*: bytes that
operators read and write, in the whole step and in each layer that touches any. Figures in
[estimate.json](estimate.json); goal: peaks within 3 %, layers within 5 %.

| example | peak recorded | estimated | error | step's bytes recorded | error | layers | median error | worst error |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
_TAIL = """
Times are not compared: an estimate has a model of them, not a measurement. What kernels allocate inside is known for
those kernels that these examples meet ([decision 145](decisions/0145-what-kernels-allocate-inside-is-ruled.md));
elsewhere, and with another torch, an estimate may be lower. Rows of a sparse gradient that a batch asks for twice are
added up, since integers that the job draws or is given are known ([decision
153](decisions/0153-integers-of-an-estimate-are-known.md)). Where they are not, as in `torch.empty(...)`, no two rows
are taken to be of one index, and the optimizer's bytes are an upper bound. Operators that PyTorch has no rule of shapes
for run on zeros, and the estimate names them."""


def page(told: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    return "\n".join(_lines(told)) + "\n"


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    machine, settings = told["machine"], told["settings"]
    yield _HEAD.format(
        when=told["when"],
        cores=machine["cores"],
        cpu=processor(machine),
        kernel=machine["kernel"].split("-")[0],
        torch=told["versions"]["torch"],
        threads=settings["threads"],
    )
    for name, found in told["results"].items():
        real, guess, errors = found["recorded"], found["estimated"], found["errors"]
        errors = {key: value + 0.0 if isinstance(value, float) else value for key, value in errors.items()}
        cells = [
            name,
            format_bytes(real["peak_bytes"]),
            format_bytes(guess["peak_bytes"]),
            f"{errors['peak']:+.2%}",
            format_bytes(sum(real["layer_bytes"])),
            f"{errors['step']:+.2%}",
            str(errors["layers"]),
            f"{errors['layer_median']:+.2%}",
            f"{errors['layer_worst']:+.2%} ({errors['worst_layer']})",
        ]
        yield f"| {' | '.join(cells)} |"
    yield _TAIL
