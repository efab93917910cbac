"""One budget for all processes of a node: by need, never exceeded, and nobody waits for anybody."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sentinel.core.budget import parts_by_need
from sentinel.core.errors import UsageError
from sentinel.core.units import PAGE_BYTES, parse_amount, parse_fast
from sentinel.system.launched import Launched, launched
from sentinel.system.node_share import NodeShare
from sentinel.system.process_start import started_at

PAGE = PAGE_BYTES


def rank(number: int, ranks: int = 2, job: str = "a") -> Launched:
    return Launched(number, ranks, number, ranks, job)


@pytest.mark.parametrize(
    ("total", "needs", "parts"),
    [
        (8, (None, None), (4, 4)),
        (8, (10, None), (4, 4)),  # who has not spoken yet has an equal part
        (8, (10, 2), (6, 2)),
        (8, (1, 2), (1, 2)),
        (8, (10, 10, 1), (4, 3, 1)),
        (9, (9, 9, 9, 9), (2, 2, 2, 3)),
        (0, (5, 5), (0, 0)),
        (1, (5, 5), (0, 1)),
    ],
)
def test_what_is_not_needed_goes_to_who_needs_it(
    total: int, needs: tuple[int | None, ...], parts: tuple[int, ...]
) -> None:
    """In pages, and a few bytes more, of which nobody has a use."""
    found = parts_by_need(total * PAGE + 17, [None if need is None else need * PAGE for need in needs])
    assert sorted(found) == sorted(part * PAGE for part in parts)
    if len(set(parts)) == len(set(needs)):
        assert found == tuple(part * PAGE for part in parts)


def test_one_that_has_not_spoken_keeps_an_equal_part(tmp_path: Path) -> None:
    first = NodeShare(8 * PAGE, rank(0), str(tmp_path))
    assert (first.nbytes, first.of_need(100 * PAGE)) == (4 * PAGE, 4 * PAGE)
    second = NodeShare(8 * PAGE, rank(1), str(tmp_path))
    assert second.nbytes == 4 * PAGE
    assert first.of_need(100 * PAGE) == 4 * PAGE
    assert second.of_need(2 * PAGE) == 2 * PAGE
    assert first.of_need(100 * PAGE) == 6 * PAGE
    assert second.of_need(100 * PAGE) == 2 * PAGE  # what the first uses is not taken from it
    assert first.of_need(PAGE) == 6 * PAGE
    assert first.alone == second.alone == ""


def test_the_sum_is_never_above_the_budget_in_whatever_order_they_speak(tmp_path: Path) -> None:
    chance = random.Random(5)
    for job in range(40):
        ranks, total = chance.randint(1, 5), chance.randint(0, 40 * PAGE)
        shares: dict[int, NodeShare] = {}
        for _ in range(30):
            number = chance.randrange(ranks)
            if number not in shares or chance.random() < 0.1:
                shares[number] = NodeShare(total, rank(number, ranks, str(job)), str(tmp_path))
            else:
                before = shares[number].nbytes
                told = shares[number]._told
                assert shares[number].of_need(chance.randint(0, 30 * PAGE)) >= (before if told else 0)
            equal = total // ranks // PAGE * PAGE
            assert sum(shares[n].nbytes if n in shares else equal for n in range(ranks)) <= total


def test_a_process_that_ended_counts_as_one_that_has_not_spoken(tmp_path: Path) -> None:
    text = (
        "import sys; from sentinel.system.launched import Launched; from sentinel.system.node_share import NodeShare\n"
        f"share = NodeShare({8 * PAGE}, Launched(1, 2, 1, 2, 'a'), sys.argv[1]); share.of_need({PAGE})\n"
        "import os; os._exit(0)"
    )
    first = NodeShare(8 * PAGE, rank(0), str(tmp_path))
    subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=True, timeout=600)
    assert len(Path(f"{first._path}.1").read_bytes().split()) == 3  # its record is there still
    assert first.of_need(100 * PAGE) == 4 * PAGE


ELSEWHERE = f"""
import ctypes, os, sys
CLONE_NEWPID = 0x20000000
if ctypes.CDLL(None).unshare(CLONE_NEWPID):
    print("refused", flush=True)
    sys.exit()
if os.fork():
    os.wait()
    sys.exit()
from sentinel.system.launched import Launched
from sentinel.system.node_share import NodeShare
share = NodeShare({8 * PAGE}, Launched(1, 2, 1, 2, "a"), sys.argv[1])
share.of_need({PAGE})
print(os.getpid(), flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_processes_of_other_containers_live_until_they_end(tmp_path: Path) -> None:
    """They have numbers of their own: here the other one is number 1, as is some process of this host."""
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        said = other.stdout.readline().strip()
        if said == "refused":
            pytest.skip("this user may make no namespace of processes")
        assert said == "1"
        assert NodeShare(8 * PAGE, rank(0), str(tmp_path)).of_need(100 * PAGE) == 7 * PAGE
        other.communicate(timeout=600)
    assert NodeShare(8 * PAGE, rank(0), str(tmp_path)).of_need(100 * PAGE) == 4 * PAGE


def test_one_whose_record_was_removed_writes_another(tmp_path: Path) -> None:
    first, second = (NodeShare(8 * PAGE, rank(number), str(tmp_path)) for number in (0, 1))
    for path in tmp_path.iterdir():
        path.unlink()
    assert second.of_need(2 * PAGE) == 2 * PAGE
    assert first.of_need(100 * PAGE) == 6 * PAGE


def test_a_forked_child_keeps_what_its_parent_had_and_leaves_the_files(tmp_path: Path) -> None:
    """It shares the memory of its parent, so that is in use still."""
    first, second = (NodeShare(8 * PAGE, rank(number), str(tmp_path)) for number in (0, 1))
    second.of_need(PAGE)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.read(told, 1)  # until the parent has closed it
        os._exit(0)
    os.close(told)
    os.close(second._own.pop())  # as if the parent had been killed
    assert first.of_need(100 * PAGE) == 7 * PAGE
    os.close(tell)
    assert os.waitpid(child, 0)[1] == 0
    assert NodeShare(8 * PAGE, rank(0), str(tmp_path)).of_need(100 * PAGE) == 4 * PAGE


def test_what_grew_by_what_one_left_is_not_taken_again_by_its_successor(tmp_path: Path) -> None:
    first, second = (NodeShare(8 * PAGE, rank(number), str(tmp_path)) for number in (0, 1))
    second.of_need(PAGE)
    assert first.of_need(100 * PAGE) == 7 * PAGE
    del second
    gc.collect()
    again = NodeShare(8 * PAGE, rank(1), str(tmp_path))
    assert again.nbytes == again.of_need(100 * PAGE) == PAGE


def test_the_file_goes_with_the_last_one_and_is_nobody_elses_before(tmp_path: Path) -> None:
    first, second = (NodeShare(8 * PAGE, rank(number), str(tmp_path)) for number in (0, 1))
    path = Path(first._path)
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    del first
    gc.collect()
    assert path.exists()
    del second
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_one_that_is_made_anew_is_not_undone_by_the_end_of_the_one_before(tmp_path: Path) -> None:
    other, old = (NodeShare(8 * PAGE, rank(number), str(tmp_path)) for number in (1, 0))
    new = NodeShare(8 * PAGE, rank(0), str(tmp_path))
    new.of_need(2 * PAGE)
    del old
    gc.collect()
    assert other.of_need(100 * PAGE) == 6 * PAGE


@pytest.mark.parametrize("there", [b"", b"\0" * 300, b"[1, 2]" + b" " * 200, b"x" * 64])
def test_a_damaged_file_is_one_in_which_nobody_has_spoken(there: bytes, tmp_path: Path) -> None:
    first = NodeShare(8 * PAGE, rank(0), str(tmp_path))
    before = NodeShare(8 * PAGE, rank(1), str(tmp_path))
    before.of_need(PAGE)
    for path in tmp_path.iterdir():
        path.write_bytes(there)
    assert first.of_need(100 * PAGE) == 4 * PAGE
    second = NodeShare(8 * PAGE, rank(1), str(tmp_path))
    assert second.of_need(PAGE) == PAGE
    assert first.of_need(100 * PAGE) == 7 * PAGE


def test_without_a_file_of_its_own_each_has_an_equal_part(tmp_path: Path) -> None:
    missing = NodeShare(8 * PAGE, rank(0), str(tmp_path / "missing"))
    assert missing.of_need(PAGE) == 4 * PAGE
    assert "missing" in missing.alone
    path = Path(NodeShare(8 * PAGE, rank(0), str(tmp_path))._path)
    gc.collect()
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "elsewhere")
    assert NodeShare(8 * PAGE, rank(0), str(tmp_path)).alone
    assert not (tmp_path / "elsewhere").exists()


def test_what_others_cannot_be_told_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (NodeShare(8 * PAGE, rank(number), str(tmp_path)) for number in (0, 1))
    second.of_need(PAGE)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("sentinel.system.node_share.os.pwrite", full)
        assert first.of_need(100 * PAGE) == 4 * PAGE
    assert "No space left" in first.alone
    again = NodeShare(8 * PAGE, rank(1), str(tmp_path))
    assert again.of_need(100 * PAGE) == 4 * PAGE
    assert first.of_need(100 * PAGE) == 4 * PAGE
    assert first.alone == ""


def test_a_process_that_was_stopped_with_the_lock_is_not_waited_for(tmp_path: Path) -> None:
    first, second = (NodeShare(8 * PAGE, rank(number), str(tmp_path)) for number in (0, 1))
    second.of_need(PAGE)
    with open(first._path, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert first.of_need(100 * PAGE) == 4 * PAGE
    assert "locked" in first.alone
    assert first.of_need(100 * PAGE) == 7 * PAGE
    assert first.alone == ""


def test_a_process_by_itself_has_all_of_it_and_writes_nothing(tmp_path: Path) -> None:
    assert NodeShare(8 * PAGE, Launched(), str(tmp_path)).of_need(PAGE) == 8 * PAGE
    assert not list(tmp_path.iterdir())


def test_an_ended_process_has_no_start(tmp_path: Path) -> None:
    assert started_at(os.getpid()) > 0
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked for its end
        assert started_at(child.pid) == 0
    assert started_at(child.pid) == 0


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, (0, 1, 0, 1)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, (5, 8, 1, 4)),
        ({"RANK": "5", "WORLD_SIZE": "8"}, (5, 8, 5, 8)),  # for all it knows, all are here
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
         | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}, (3, 7, 1, 2)),
        ({"SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "0", "SLURM_NODEID": "3"}
         | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}, (6, 7, 0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
         | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (3, 4, 1, 2)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "0"}, (1, 4, 1, 4)),  # Lightning's own launcher
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "1"}, (0, 1, 0, 1)),  # how many are before it, nobody says
        ({"LOCAL_RANK": "1"}, (0, 1, 0, 1)),
        ({"RANK": "x", "WORLD_SIZE": "8"}, (0, 1, 0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "0"}, (0, 1, 0, 1)),
    ],
)  # fmt: skip
def test_what_launchers_say(environment: dict[str, str], told: tuple[int, ...]) -> None:
    assert tuple(launched(environment))[:4] == told


class Joined:
    """torch.distributed, as a process that it has joined finds it."""

    def __init__(self, rank: int, size: int, port: int = 5) -> None:
        self.get_rank, self.get_world_size = lambda: rank, lambda: size
        store = SimpleNamespace(underlying_store=SimpleNamespace(host="h", port=port))
        self.distributed_c10d = SimpleNamespace(_get_default_store=lambda: store)
        self.is_available = self.is_initialized = lambda: True


@pytest.mark.parametrize(
    ("environment", "joined", "told"),
    [
        ({}, (1, 2), (1, 2, 1, 2)),  # spawned
        ({}, (0, 1), (0, 1, 0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (5, 8), (5, 8, 5, 8)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, (5, 8), (5, 8, 1, 4)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, (0, 2), (5, 8, 1, 4)),  # pairs
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (3, 4), (3, 4, 3, 4)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "0"}, (1, 4), (1, 4, 1, 4)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "1"}, (3, 4), (3, 4, 1, 2)),
        ({"LOCAL_RANK": "1", "NODE_RANK": "1"}, (3, 4), (3, 4, 1, 2)),  # it takes WORLD_SIZE out as it ends
    ],
)  # fmt: skip
def test_what_no_launcher_says_the_process_group_does(
    environment: dict[str, str], joined: tuple[int, int], told: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(environment))
    monkeypatch.setitem(sys.modules, "torch.distributed", Joined(*joined))
    assert tuple(launched())[:4] == told


def test_jobs_without_a_launcher_are_told_apart_by_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    found = []
    for rank, port in ((0, 5), (1, 5), (0, 6)):
        monkeypatch.setitem(sys.modules, "torch.distributed", Joined(rank, 2, port))
        found.append(launched().job)
    assert found[0] == found[1] != found[2]


def test_jobs_are_told_apart_by_what_their_launcher_says() -> None:
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
    jobs = {launched(told | change).job for change in ({}, {"MASTER_PORT": "2"}, {"TORCHELASTIC_RESTART_COUNT": "1"})}
    assert len(jobs) == 3
    assert launched(told).job == launched(told | {"RANK": "1"}).job


def test_an_amount_for_the_node_is_told_apart() -> None:
    amount = parse_fast("8GiB/node")
    assert (amount.nbytes, amount.per_node, amount.text) == (8 << 30, True, "8GiB/node")
    assert parse_fast("20%") == parse_amount("20%")
    with pytest.raises(UsageError, match="leave out"):
        parse_fast("20%/node")
    with pytest.raises(UsageError, match="not an amount"):
        parse_fast("/node")
    with pytest.raises(UsageError, match="not an amount"):
        parse_amount("8GiB/node")  # where it would mean nothing, as for training data
