"""`sentinel estimate`: how much memory a step takes, how fast it is, and what to buy, before anything runs."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sentinel.cli.common import (
    MACHINES,
    OK,
    add_json,
    add_verb,
    amount,
    check_outputs,
    machine_named,
    print_json,
    print_table,
    saving,
    telling,
    whole_number,
)
from sentinel.cli.fast_memory_curve import curve_of, point_at
from sentinel.cli.script import function_named
from sentinel.core.errors import UsageError
from sentinel.core.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from sentinel.core.machine import Machine
    from sentinel.core.profile import Profile
    from sentinel.planner.sweep import Comparison, Knee, Point

CURVE = ("5%", "10%", "20%", "40%", "60%", "80%", "100%")
ELSEWHERE = "cxl-m5"
"""The machine that is meant where none is named and this host's memory was not calibrated."""

_EXAMPLES = """\
examples:
  sentinel estimate models:gpt2 --batch 8
  sentinel estimate examples/01_gpt2.py:job
  sentinel estimate models:gpt2 --batch 8 --fast 8GiB --machine optane-m10
  sentinel estimate models:gpt2 -o estimated.safetensors
      keeps the profile; `sentinel plan`, `simulate` and `compare` take it as they take a recorded one

FACTORY is package.module:function or path/to/script.py:function. The function is called with batch=N, where that is
given, and returns (model, inputs), (model, inputs, loss) or (model, inputs, loss, optimizer): loss(output) gives a
scalar, optimizer(parameters) an optimizer (default: AdamW). Or it returns a dict with model, optimizer and step, a
function that trains one step. It runs on the CPU, on tensors that have shapes and no memory, so it must not load
weights. Importing it must not train. Only integer values matter, because they index tables: draw them as the data does
(integers of torch.empty(...) count as all different). Without such a function, `sentinel run --dry-run train.py`
profiles one step of the script instead.

Nothing is trained. Bytes follow from shapes. Memory that kernels allocate while they run is included only for
convolutions, embedding bags and sparse gradients. How far off this is: docs/estimate.md. An operator for which PyTorch
has no shape rule runs on zeros, and is named. Times come from a model: a layer takes as long as its floating-point
operations or its bytes, whichever takes the machine longer.
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's arguments."""
    text = "say how much memory a step would take, how fast it would be, and what to buy"
    parser = add_verb(verbs, "estimate", text, f"{_EXAMPLES}\n{MACHINES}")
    parser.add_argument(
        "factory", metavar="FACTORY", help="package.module:function or script.py:function that makes the job"
    )
    parser.add_argument("--batch", type=whole_number, metavar="N", help="passed to the function as batch=N")
    parser.add_argument("--fast", type=amount, metavar="AMOUNT", help="fast memory: another point of the curve")
    parser.add_argument(
        "--machine",
        metavar="PRESET|FILE",
        help=f"the machine to estimate for (default: this host where it was calibrated, else {ELSEWHERE})",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the estimated profile here")
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Estimate, write the profile, print what it says."""
    from sentinel import files, need_torch

    need_torch()
    from sentinel.profiler.estimate.fake_step import NOTE
    from sentinel.profiler.estimate.memory_needs import needs_of
    from sentinel.reports.policy_comparison import as_object

    factory = arguments.factory.partition(":")[0]
    check_outputs(arguments.output, read=(arguments.machine, factory))
    machine, why = _machine(arguments.machine)
    make = function_named(arguments.factory)
    check_outputs(arguments.output, read=(_source_of(make),))  # of a module it is known once that is imported
    _check_call(make, arguments.factory, arguments.batch)
    profile, flops_per_s = estimated_profile(make, arguments, machine)
    found = curve_of(arguments.factory, profile, machine, CURVE, arguments.fast)
    needs = needs_of(profile)
    here = point_at(found, arguments.fast)
    with saving(arguments.output, partial(files.save, profile)) as saved:
        if arguments.json:
            told = {"kind": "estimated", "flops_per_s": flops_per_s, "needs": needs, "curve": as_object(found)}
            print_json({**told, "at_fast": None if here is None else vars(here), "notes": list(profile.notes)})
            return OK
        ran = [note for note in profile.notes if note != NOTE]
        print(f"estimated from shapes: {'' if ran else 'nothing was run, '}no weights were made; times are a model\n")
        print_table(rows_of(needs, profile, found))
        print(f"\n{_times_are(machine, flops_per_s, why)} {found.price_of_moves}")
        for note in ran:
            print(note)
        print()
        print(_points(found))
        print(f"\n{to_buy(found, machine, here, arguments.fast)}")
        if saved or not arguments.output:
            print(f"profile written to {arguments.output}" if saved else "-o FILE keeps the profile")
    return OK


def estimated_profile(make: Any, arguments: argparse.Namespace, machine: Machine) -> tuple[Profile, float]:
    """The profile, with the times of `machine`, and the floating-point operations a second that these are made with."""
    from sentinel.profiler.estimate.fake_step import estimated
    from sentinel.profiler.estimate.time_model import measured_flops_per_s, timed
    from sentinel.system.versions import require_tested

    import_name, batch = arguments.factory, arguments.batch
    require_tested(_torch_version())
    flops_per_s = machine.flops_per_s or measured_flops_per_s()
    with telling(f"estimating {import_name}"):
        profile = estimated(make if batch is None else lambda: make(batch=batch), import_name)
    origin = {"estimated from": import_name, "torch": _torch_version()}
    if batch is not None:
        origin["batch"] = str(batch)
    return replace(timed(profile, machine.fast, flops_per_s), origin={**profile.origin, **origin}), flops_per_s


def _source_of(make: Any) -> str | None:
    """The file that the function is written in."""
    try:
        return inspect.getsourcefile(inspect.unwrap(make))
    except TypeError:  # of a built-in, or an object that can be called
        return None


def _torch_version() -> str:
    from importlib.metadata import version

    return version("torch")


def _machine(named: str | None) -> tuple[Machine, str]:
    """The machine, and why it is that one where the user named none."""
    if named is not None:
        return machine_named(named), ""
    try:
        return machine_named(None), "this host, as it was calibrated"
    except UsageError:
        return machine_named(ELSEWHERE), "no machine is named, and this host's slower memory is not calibrated"


def _check_call(make: Any, name: str, batch: int | None) -> None:
    """Raises UsageError where the function does not take what it is called with."""
    given = {} if batch is None else {"batch": batch}
    try:
        inspect.signature(make).bind(**given)
    except ValueError:  # it is not known what a built-in takes
        return
    except TypeError as error:
        called = f"{name}(batch={batch})" if given else f"{name}()"
        remedy = "leave --batch out, or give it a parameter batch" if given else "give its parameters defaults"
        raise UsageError(f"{called} cannot be called: {error}", remedy) from error


def rows_of(needs: dict[str, int], profile: Profile, found: Comparison) -> list[tuple[str, str, str]]:
    """(what, amount, remark)."""
    words = {
        "param": "parameters",
        "grad": "gradients",
        "optimizer": "optimizer state",
        "buffer": "buffers",
        "activation": "kept for backward",
        "workspace": "other memory of operators",
    }
    rows = [
        (word, format_bytes(needs[f"{role}_bytes"]), "" if role in ("param", "optimizer", "buffer") else "at most")
        for role, word in words.items()
        if needs[f"{role}_bytes"]
    ]
    step = found.profiles[0].all_fast_step_ns
    return [
        *rows,
        ("memory of a step", format_bytes(needs["live_peak_bytes"]), "alive at once, at most"),
        ("  packed", format_bytes(needs["footprint_bytes"]), "the memory that a plan needs to keep all of it fast"),
        ("a step computes", f"{needs['flops'] / 1e12:.3g} TFLOP", f"in {counted(profile.n_layers, 'layer')}"),
        ("step, all fast", format_ns(step), f"model, on {found.machine}"),
    ]


def _times_are(machine: Machine, flops_per_s: float, why: str) -> str:
    source = "declared" if machine.flops_per_s else "measured here just now"
    what = f"Times are those of {machine.name} at {flops_per_s / 1e12:.3g} TFLOP/s ({source})"
    return f"{what}: {why}." if why else f"{what}."


def _points(found: Comparison) -> str:
    from sentinel.reports.policy_comparison import text

    return text(found).partition("\n\n")[2].partition("\n\n")[2]


def to_buy(found: Comparison, machine: Machine, here: Point | None, asked: str | None) -> str:
    """What to buy, in sentences."""
    footprint = found.profiles[0].footprint_bytes
    slower = [machine.tiers[index].name for index in machine.slower]
    slow, gain = " and ".join(slower), "gains" if len(slower) == 1 else "gain"
    parts = []
    if here is not None and here.speed is not None and here.step_ns is not None:
        said = f"With {asked} of fast memory ({format_bytes(here.fast_bytes)}) a step takes {format_ns(here.step_ns)}"
        parts.append(f"{said}, {here.speed:.3f} of all-fast speed.")
    knee: Knee | None = found.knees[0] if found.knees else None
    if knee is None:
        parts.append(f"To buy: {format_bytes(footprint)} of fast memory; less was too slow at every amount tried.")
    elif knee.fast_bytes >= footprint:
        parts.append(f"To buy: {format_bytes(footprint)} of fast memory; {slow} {gain} nothing here.")
    else:
        rest = format_bytes(footprint - knee.fast_bytes)
        parts.append(
            f"To buy: {format_bytes(knee.fast_bytes)} of fast memory and {rest} of {slow}, for {knee.speed:.1%} of"
            f" all-fast speed; or {format_bytes(footprint)} of fast memory. The system and the program come on top."
        )
    return " ".join(parts)
