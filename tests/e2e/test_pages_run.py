"""What the pages on the first steps and on a file as slow memory show is run as it stands there.

Sizes and folders are those of a test, of which a part of the tensors has no room: it comes back from the file. What
measures a host or needs two nodes has tests of its own.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.system.disks import disk_of
from tests.memory_groups import memory_group
from tests.shown_code import Smaller, commands, python, shown

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]

LIMIT_BYTES = 640 << 20
"""Of a container: what is in it besides tensors leaves less than TRAINS takes of 32 layers."""
TRAINS = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range({layers})])  # of 16 MiB each, as it trains
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    loss = model(torch.randn(64, 1024)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item().hex())
"""
REPORTS = "import sentinel\nsentinel.report().write('report.json')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty one on a disk, with one in it: the checkout's own disk, where pytest's folder is in memory."""
    place = tmp_path if not disk_of(tmp_path).in_memory else Path(__file__).parent
    if disk_of(place).in_memory:
        pytest.skip("needs a disk: a checkout or TMPDIR that is not in memory")
    with tempfile.TemporaryDirectory(dir=place) as made:
        (Path(made) / "scratch").mkdir()
        yield Path(made)


def storage(folder: Path) -> Smaller:
    """Eight frames of 2 MiB; a cap that any process can keep."""
    return [("/data/scratch", str(folder / "scratch")), ("8GiB", "16MiB"), ("12GiB", "2GiB")]


def came_back(report: Path) -> dict[str, int]:
    """What the report says of the file: of what was trained, bytes were written there and read again."""
    columns = json.loads(report.read_text())["frames"]["storage"]
    report.unlink()
    figures = dict(zip(columns["figure"], columns["value"], strict=True))
    assert figures["read_bytes"] > 0
    assert figures["written_bytes"] > 0
    assert figures["tensor_peak_bytes"] > figures["most_pool_bytes"]
    return figures


@pytest.mark.long  # each of its verbs has tests of its own, and those of README follow one another in test_readme.py
def test_the_tutorial_from_a_laptop_on(folder: Path) -> None:
    """On a file with the page's own model, which 64 MiB do not hold; else with a smaller one."""
    steps = ("range(20)", "range(8)")
    large, _ = shown("tutorial.md", "python", [steps])
    train, models = shown("tutorial.md", "python", [steps, ("1024", "256")])
    for name, text in (("large.py", large), ("train.py", train), ("models.py", models)):
        (folder / name).write_text(text)
    stock = {name: python(folder, name).stdout for name in ("large.py", "train.py")}
    trained, printed = [], ""
    scratch = [("/data/scratch", str(folder / "scratch"))]
    for words in commands("tutorial.md", scratch, but=("doctor", "calibrate", "--executed")):
        on_file = any(word.startswith("file:") for word in words)
        if on_file:
            assert words.pop() == "train.py"
            words += ["--report", "report.json", "large.py"]
        printed = python(folder, "-m", *words).stdout
        if words[1] == "run" and "--dry-run" not in words:
            assert printed == stock[words[-1]], words
            trained.append(words)
        if on_file:
            came_back(folder / "report.json")
        if words[1:] == ["compare", "before.json", "after.json"]:
            assert "Tensors that changed" in printed
    assert len(trained) == 4
    written = {path.name for path in folder.iterdir()}
    assert {"p.safetensors", "e.safetensors", "plan.json", "sentinel-report.html", "after.json"} <= written


@pytest.mark.long  # commands with an amount and a cap: test_passive.py, test_cap_in_a_group.py and .ci/demo have both
def test_tensors_in_a_file(folder: Path) -> None:
    train = TRAINS.format(layers=6)
    (folder / "train.py").write_text(train)
    stock = python(folder, "train.py").stdout
    programs = shown("storage.md", "python", storage(folder))
    runs = [words for words in commands("storage.md", storage(folder)) if {"--fast", "--cap"} & set(words)]
    assert (len(programs), len(runs)) == (3, 2)
    for number, program in enumerate(programs):
        path = folder / f"program{number}.py"
        path.write_text(f"import sentinel\n{program}{train}{REPORTS}")
        assert python(folder, path.name, **beside(program)).stdout == stock, program
        came_back(folder / "report.json")
    for words in runs:
        command = ["-m", *words[:2], "--report", "report.json", *words[2:]]
        assert python(folder, *command, **beside(" ".join(words))).stdout == stock, words
        came_back(folder / "report.json")


def beside(shown: str) -> dict[str, str]:
    """Variables with which a cap that any process can keep leaves as little for tensors as the other budgets."""
    return {"SENTINEL_FAST": "16MiB"} if "cap" in shown else {}


def test_tensors_in_a_file_beside_a_container_that_is_too_small(folder: Path) -> None:
    """The command without an amount: what the container's limit leaves is the budget."""
    train = TRAINS.format(layers=32)
    (folder / "train.py").write_text(train)
    stock = python(folder, "train.py").stdout
    (words,) = [
        words
        for words in commands("storage.md", storage(folder))
        if words[1:3] == ["run", "--slow"] and len(words) == 5
    ]
    with memory_group() as group:
        group.limit.write_text(str(LIMIT_BYTES))
        join = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group.folder / "cgroup.procs")]
        done = python(folder, "-m", *words[:2], "--report", "report.json", *words[2:], before=join)
    assert done.stdout == stock
    told = came_back(folder / "report.json")
    assert told["cap_bytes"] == LIMIT_BYTES
