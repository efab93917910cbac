"""The training scripts that are proved: the six examples of a checkout, or two small ones of the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sentinel.core.errors import UsageError

HERE = Path(__file__).parent
CHECKOUT = "run `sentinel prove` in a checkout, after `make venv` or `pip install -e '.[torch,examples]'`"


@dataclass(frozen=True)
class Workload:
    """`script`: its path. `step_s`: what a step takes about, on two slow cores. `imports`: modules
    that it needs, to be there before the clock starts. It takes --steps, and --stock to train without Sentinel."""

    name: str
    script: str
    step_s: float
    imports: tuple[str, ...] = ()


_EXAMPLES = (
    ("01_gpt2", 0.6, ("transformers.models.gpt2",)),
    ("02_resnet", 0.2, ("transformers.models.resnet", "sklearn.datasets")),
    ("03_lstm", 0.15, ()),
    ("04_dlrm", 0.1, ()),
    ("05_dcgan", 0.15, ("sklearn.datasets",)),
    ("06_mobilenet", 0.2, ("transformers.models.mobilenet_v2", "sklearn.datasets")),
)
_SMALL = (("small_perceptron", 0.02), ("small_convolution", 0.05))


def small_workloads() -> tuple[Workload, ...]:
    """The two of the package: any installation has them."""
    return tuple(Workload(name, str(HERE / f"{name}.py"), step_s) for name, step_s in _SMALL)


def examples(folder: Path | None = None) -> tuple[Workload, ...]:
    """The six examples in `folder`, by default that of the checkout that this package is in.

    Raises UsageError where there is no such folder, as in an installed wheel, or where what they import is missing.
    """
    folder = HERE.parents[1] / "examples" if folder is None else folder
    missing = next((name for name in ("common", *(row[0] for row in _EXAMPLES)) if not _script(folder, name)), None)
    if missing is not None:
        raise UsageError(
            f"there is no {missing}.py beside this installation: the examples are not part of the wheel",
            f"{CHECKOUT}, or try --quick, which trains two small models",
        )
    for module in ("transformers", "sklearn"):
        if find_spec(module) is None:
            raise UsageError(
                f"the examples need {module}, which is not installed",
                f"{CHECKOUT}, or try --quick, which needs neither",
            )
    return tuple(Workload(name, str(folder / f"{name}.py"), step_s, imports) for name, step_s, imports in _EXAMPLES)


def _script(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file()
