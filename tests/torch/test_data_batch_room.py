"""Batches that find no room in /dev/shm, or cannot be sent: one sentence, nothing left there, and nobody waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.utils.data import Dataset  # noqa: E402

import sentinel.data  # noqa: E402
from sentinel.core.errors import FormatError, UsageError  # noqa: E402
from sentinel.data.batch_room import can_never_hold, found_no_room  # noqa: E402
from sentinel.data.loading import MOST_RESTARTS, Loader  # noqa: E402
from tests.data_files import rows  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402

COUNT = 200
SMALL = """
import functools, json, os, sys
import torch
import sentinel.data

def large(numbers, row):
    return torch.zeros(numbers) + int(row[0])

def trained(path, collate, numbers):
    transform = functools.partial(large, numbers)
    loader = sentinel.data.loader(
        path, transform, batch_size=10, memory="1MiB", unit=16, workers=2, collate_fn=collate
    )
    lines, delivered = [], []
    try:
        for batch in loader:
            delivered += [int(row[0]) for row in batch]
            del batch
    except sentinel.UsageError as error:
        lines.append(str(error))
    left = [name for name in os.listdir("/dev/shm") if name.startswith("torch")]
    return [*lines, f"{len(delivered)} {len(set(delivered))} {left}"]

if __name__ == "__main__":
    path, *cases = sys.argv[1:]
    for case in cases:
        kind, numbers = case.split(":")
        print(json.dumps(trained(path, {"list": list, "default": None}[kind], int(numbers))))
        print("ended:", case, file=sys.stderr, flush=True)
"""
CASES = ("default:100000", "list:100000", "default:1000")
"""What makes batches of samples, and how many float32 a sample has."""


@pytest.fixture(autouse=True)
def _patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sentinel.data.staged_samples.PATIENCE_S", 600.0)
    monkeypatch.setattr("sentinel.data.loader_workers._END_S", LONGEST_S)  # however long the kernel takes to end one


@pytest.fixture(scope="module")
def in_a_small_shm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], str]]:
    """What a program says of each of the CASES whose /dev/shm has 1 MiB: its lines, and stderr."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True, timeout=300).returncode:
        pytest.skip("needs a mount namespace: run as root where unshare(2) is allowed")
    folder = tmp_path_factory.mktemp("small_shm")
    path, program = rows(folder, COUNT), folder / "program.py"
    program.write_text(SMALL)
    script = 'mount -t tmpfs -o size=1M none /dev/shm && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, str(program), path, *CASES]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=LONGEST_S)
    found: dict[str, tuple[list[str], str]] = {}
    errors = done.stderr
    for case, line in zip(CASES, done.stdout.splitlines(), strict=True):
        own, errors = errors.split(f"ended: {case}\n")
        found[case] = json.loads(line), own
    return found


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ("unable to allocate shared memory(shm) for file </torch_7_1_0>: No space left on device (28)", True),
        ("unable to resize file </torch_7_1_0> to the right size: No space left on device (28)", True),
        ("unable to open shared memory object </torch_7_1_0> in read-write mode: Too many open files (24)", False),
        ("unable to write to file </data/a.bin>: No space left on device (28)", False),
    ],
)
def test_a_full_shm_is_known_by_what_torch_says(said: str, full: bool) -> None:
    """Words of its MapAllocator; which of them comes depends on the release and the file system."""
    assert found_no_room(RuntimeError(said)) == full


@pytest.mark.needs("root")
@pytest.mark.parametrize("kind", ["default", "list"])
def test_a_small_shm_is_named_with_what_batches_take(
    kind: str, in_a_small_shm: dict[str, tuple[list[str], str]]
) -> None:
    (said, counted), stderr = in_a_small_shm[f"{kind}:100000"]
    assert said.startswith("a batch found no room in shared memory: /dev/shm has 1.00 MiB, ")
    assert "up to 4 batches lie there (2 workers, prefetch_factor=2)" in said
    assert ("a batch takes 3.81 MiB, all 15.26 MiB" in said) == (kind == "default")  # else torch sends it in a thread
    assert said.endswith(
        "give fewer workers= or prefetch_factor=1, smaller batches, or a larger /dev/shm "
        "(docker run --shm-size, ipc=host)"
    )
    assert counted == "0 0 []", "names stay in /dev/shm"
    assert stderr.count("all start again") == (0 if kind == "default" else MOST_RESTARTS)


@pytest.mark.needs("root")
def test_batches_that_fit_are_delivered(in_a_small_shm: dict[str, tuple[list[str], str]]) -> None:
    (counted,), stderr = in_a_small_shm["default:1000"]
    assert counted == f"{COUNT} {COUNT} []"
    assert "start again" not in stderr


def loader_of(path: str, transform: Any, **options: Any) -> Loader:
    asked = {"batch_size": 10, "memory": "1MiB", "unit": 16, "workers": 1, **options}
    return sentinel.data.loader(path, transform, **asked)


class FullFor:
    """Raises in a worker what torch raises where /dev/shm is full, so many times: as where another program needs it for
    a while."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder, self.times = folder, times

    def __call__(self, items: list[Any]) -> Any:
        done = len(list(self.folder.glob("full*")))
        if done < self.times:
            (self.folder / f"full{done}").touch()
            raise RuntimeError(
                "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"
            )
        return torch.tensor([int(row[0]) for row in items])


@pytest.mark.parametrize("times", [MOST_RESTARTS, 100])
def test_a_shm_that_is_full_for_a_while_costs_time_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], times: int
) -> None:
    loader = loader_of(rows(tmp_path, COUNT), None, collate_fn=FullFor(tmp_path, times), prefetch_factor=1)
    delivered: list[int] = []
    if times > MOST_RESTARTS:
        with pytest.raises(UsageError, match="a batch found no room in shared memory: /dev/shm has"):
            list(loader)
    else:
        delivered += [number for batch in loader for number in batch.tolist()]
        assert sorted(delivered) == list(range(COUNT))
        assert loader.report().feed.samples == COUNT
    told = capfd.readouterr().err.count("a batch found no room in /dev/shm: all start again")
    # a worker may have failed at another batch before it was ended
    assert told == MOST_RESTARTS if times > MOST_RESTARTS else 1 <= told <= MOST_RESTARTS
    loader.close()


class Bus:
    """Ends each worker by the signal of memory that is not there, and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, _: Any) -> int:
        (self.folder / f"bus{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGBUS)
        return 0


def test_workers_that_end_by_sigbus_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loader = loader_of(rows(tmp_path, COUNT), Bus(tmp_path))
    with pytest.raises(UsageError, match=r"ended by SIGBUS, as where /dev/shm is full, or a mapped .*: /dev/shm has"):
        list(loader)
    assert len(list(tmp_path.glob("bus*"))) == 1 + MOST_RESTARTS
    assert capfd.readouterr().err.count("all start again") == MOST_RESTARTS
    loader.close()


def unsendable(items: list[Any]) -> Any:
    return lambda: items


def test_a_batch_that_cannot_be_sent_is_not_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loader = loader_of(rows(tmp_path, COUNT), None, collate_fn=unsendable)
    with pytest.raises(
        UsageError, match=r"a worker of the loader cannot send a batch .*; let transform= and collate_fn="
    ):
        list(loader)
    assert "pickle" in capfd.readouterr().err
    loader.close()


def test_what_can_never_lie_in_shm() -> None:
    told = os.statvfs("/dev/shm")
    assert not can_never_hold(told.f_blocks * told.f_frsize)
    assert can_never_hold(told.f_blocks * told.f_frsize + 1)


class Changing(Dataset[int]):
    """A Dataset of another length later."""

    n = 40

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


class Fewer(Changing):
    """One that gives one item too few, of a batch with the last one."""

    def __getitems__(self, numbers: list[int]) -> Any:
        return numbers[1:] if 39 in numbers else iter(numbers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_gives_fewer_items_is_named(workers: int) -> None:
    loader = sentinel.data.loader(Fewer(), batch_size=8, memory="1MiB", workers=workers)
    said = "Dataset Fewer: __getitems__: gave 7 items where it was asked for 8: give one for each number, in order"
    with pytest.raises(FormatError) as raised:
        list(loader)
    assert str(raised.value) == said
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_of_another_length_is_named(workers: int) -> None:
    dataset = Changing()
    loader = sentinel.data.loader(dataset, batch_size=8, memory="1MiB", workers=workers)
    assert sorted(number for batch in loader for number in batch.tolist()) == list(range(40))
    dataset.n = 41
    said = "Dataset Changing: length: 41 now, 40 when the loader was made: make the loader again"
    with pytest.raises(FormatError) as raised:
        iter(loader)
    assert str(raised.value) == said
    loader.close()


def test_a_dataset_whose_length_changes_in_an_epoch_is_named() -> None:
    dataset = Changing()
    batches = iter(sentinel.data.loader(dataset, batch_size=8, memory="1MiB"))
    next(batches)
    dataset.n = 12
    with pytest.raises(FormatError, match="Dataset Changing: length: 12 now, 40 when"):
        next(batches)
