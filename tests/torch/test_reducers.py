"""What DistributedDataParallel holds in C++ moves with its parameters, and what else holds them is found as ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch import distributed, nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from sentinel.core.errors import CapabilityError  # noqa: E402
from sentinel.migration import adopt as adopting  # noqa: E402
from sentinel.migration.adopt import adopt  # noqa: E402
from sentinel.migration.memory import ManagedMemory  # noqa: E402
from sentinel.profiler import names, reducers  # noqa: E402

pytestmark = [
    pytest.mark.needs("compiler"),
    pytest.mark.skipif(not distributed.is_available(), reason="needs a torch with torch.distributed"),
]


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """One process is a job too: its reducer holds what it holds in a larger one."""
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[ManagedMemory]:
    monkeypatch.setattr(adopting, "others_run", lambda: False)  # threads that run tests side by side touch no tensor
    installed = ManagedMemory.install()
    yield installed
    installed.uninstall()


class Job:
    """A wrapped model, always the same, its optimizer, and what its steps came to."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())])
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=0.02, **options)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def train(self, steps: int) -> list[bytes]:
        torch.manual_seed(steps)
        for _ in range(steps):
            loss = self.model(torch.randn(8, 64)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return [param.detach().numpy().tobytes() for param in self.net.parameters()]

    def named(self) -> list[tuple[str, Any]]:
        return [(name, tensor) for name, tensor, _ in names.persistent_tensors([self.model], [self.optimizer])]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_all_that_a_reducer_holds_moves_and_trains_on_to_the_same_bits(
    kind: str, before: int, memory: ManagedMemory
) -> None:
    """Before the first step, before buckets are made again, and after that."""
    expected = Job(**OPTIONS[kind])
    expected.train(before)
    wanted = expected.train(4)
    job = Job(**OPTIONS[kind])
    job.train(before)
    rows = adopt(memory, job.named())
    large = [row for row in rows if row.nbytes >= adopting.SMALL_BYTES]
    assert {row.reason for row in large} == {""}
    assert any("bucket." in row.name for row in large)
    assert all(memory.contains(param.data_ptr()) for param in job.net.parameters() if param.nbytes >= 1024)
    assert job.train(4) == wanted
    again = {row.reason for row in adopt(memory, job.named()) if row.nbytes >= adopting.SMALL_BYTES}
    assert again <= {"", "it is in managed memory already"}


def test_under_a_hook_of_the_users_parameters_move(memory: ManagedMemory) -> None:
    """A hook in Python has seen the buckets: what it knows of them nobody knows, so they stay."""
    jobs = [Job(), Job()]
    for job in jobs:
        job.model.register_comm_hook(None, allreduce_hook)
        job.train(3)
    rows = adopt(memory, jobs[1].named())
    stayed = [row.name for row in rows if row.reason and row.nbytes >= adopting.SMALL_BYTES]
    assert stayed
    assert all(name.startswith("bucket.") for name in stayed)
    assert jobs[0].train(4) == jobs[1].train(4)


def test_what_else_holds_a_parameter_is_found_as_ever(memory: ManagedMemory) -> None:
    job = Job()
    job.train(3)
    kept = job.net[0].weight.detach().numpy()
    capsule = torch.utils.dlpack.to_dlpack(job.net[2].weight.detach())
    reasons = {row.name: row.reason for row in adopt(memory, job.named())}
    assert "numpy" in reasons["module.0.weight"]
    assert reasons["module.2.weight"]
    assert reasons["module.4.weight"] == ""
    assert kept.ctypes.data == job.net[0].weight.data_ptr()
    del capsule


def test_a_graph_that_is_alive_keeps_parameters_where_they_are(memory: ManagedMemory) -> None:
    """Its saved tensors are references that a reducer has not: one too many, and no more than that."""
    job = Job()
    job.train(3)
    loss = job.model(torch.randn(8, 64)).square().mean()
    reasons = {row.name: row.reason for row in adopt(memory, job.named())}
    assert "graph" in reasons["module.2.weight"]
    loss.backward()


def test_buckets_are_told_to_change_until_they_have(memory: ManagedMemory) -> None:
    job, unused = Job(), Job(find_unused_parameters=True)
    assert reducers.to_be_rebuilt(job.model)
    assert not reducers.to_be_rebuilt(unused.model)
    before = {bucket.data_ptr() for bucket in reducers.buckets(job.model)}
    job.train(2)
    assert not reducers.to_be_rebuilt(job.model)
    assert before != {bucket.data_ptr() for bucket in reducers.buckets(job.model)}
    nbytes = sum(bucket.nbytes for bucket in reducers.buckets(job.model))
    assert nbytes == sum(param.nbytes for param in job.net.parameters())


def test_what_is_no_reducer_of_these_parameters_is_not_read(capfd: pytest.CaptureFixture[str]) -> None:
    job, other = Job(), Job()
    job.model.__dict__["_module_parameters"] = other.model.__dict__["_module_parameters"]
    assert len(reducers.references([job.model])) == 0
    assert "stays in place" in capfd.readouterr().err
    assert reducers.buckets(job.model) == []
    assert not reducers.to_be_rebuilt(job.model)


def test_a_reducer_that_cannot_be_compiled_for_costs_a_sentence(
    memory: ManagedMemory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise CapabilityError("compiling sentinel_reducers", "no C++ compiler was found", "install one")

    job = Job()
    monkeypatch.setattr(reducers, "_library", refused)
    reasons = {row.name: row.reason for row in adopt(memory, job.named())}
    assert "outside of Python" in reasons["module.0.weight"]
    assert "no C++ compiler" in capfd.readouterr().err
