"""keep_fast and keep_slow: a session plans around them, trains to the same bits, and says what cannot be done."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
from torch import nn

import sentinel
from sentinel import session
from sentinel.core.pins import Pins, pins_of
from sentinel.core.plan import Plan
from sentinel.runtime import RUNTIME
from sentinel.session.pinning import fast_bytes_of, pins_of_job
from sentinel.session.planning import Dataflow, Planning
from sentinel.session.request import Request
from sentinel.session.training_job import TrainingJob
from sentinel.system.configuration import NAMES
from tests.builders import MIB, make_machine, make_profile, param

pytestmark = pytest.mark.needs("torch", "compiler")

EMULATED = {"slow": "emulated:cxl-asic-x8", "tracker": "ops"}
WIDTH = 256  # a weight has 256 KiB


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in NAMES:
        monkeypatch.delenv(f"SENTINEL_{name.upper()}", raising=False)
    monkeypatch.setattr(RUNTIME, "configured", None)
    monkeypatch.setattr(RUNTIME, "kept", [])
    yield
    if sentinel.active():
        sentinel.stop()


class Job:
    """Four layers and their optimizer, always the same."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.losses: list[str] = []

    def step(self) -> None:
        loss = self.model(torch.randn(64, WIDTH)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item().hex())

    def placed(self, steps: int = 3, **words: object) -> Plan:
        """A step to make the optimizer's state, one that is watched, and `steps` under the plan."""
        self.step()
        with sentinel.annotate(self.model, self.optimizer):
            sentinel.start_profile(**{**EMULATED, **words})
            self.step()
            plan = sentinel.end_profile()
            for _ in range(steps):
                self.step()
        return plan


def tiers_of(plan: Plan, name: str) -> set[int]:
    slot = next(slot for slot in plan.slots if slot.name == name)
    blocks = [i for i, block in enumerate(plan.blocks) if slot.tensor in block.tensors]
    assert blocks
    return {int(tier) for tier in np.unique(plan.placement[blocks])}


def test_objects_and_patterns_are_kept_and_training_is_the_same() -> None:
    stock = Job()
    for _ in range(5):
        stock.step()
    job = Job()
    sentinel.keep_fast(job.model[6])
    sentinel.keep_slow(job.model[0].weight)
    plan = job.placed(fast="60%", keep_slow="*.exp_avg_sq")
    last = session.current()
    assert last is not None
    assert last.applying
    assert tiers_of(plan, "6.weight") == tiers_of(plan, "6.bias") == {0}
    assert tiers_of(plan, "0.weight") == tiers_of(plan, "2.weight.exp_avg_sq") == {1}
    assert pins_of(plan.details).slow == ("*.exp_avg_sq", "0.weight")
    text = sentinel.report().text()
    assert "Kept where you said" in text
    assert "kept fast, saves" in text
    sentinel.stop()
    assert job.losses == stock.losses
    assert all(map(torch.equal, job.model.parameters(), stock.model.parameters()))


def test_too_much_is_an_error_before_anything_changes() -> None:
    job = Job()
    sentinel.keep_fast(job.model)
    with pytest.raises(sentinel.UsageError, match=r"keep_fast names 1\.00 MiB, the budget.* is 512\.00 KiB"):
        sentinel.start_profile(job.model, job.optimizer, fast="512KiB", **EMULATED)
    assert not sentinel.active()


def test_too_much_of_a_share_is_one_sentence_and_nothing_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job()
    plan = job.placed(fast="10%", keep_fast="*", keep_slow=None)
    assert "pins" not in plan.details
    assert capsys.readouterr().err.count("so nothing is kept fast\n") == 1
    assert "so nothing is kept fast" in " ".join(sentinel.report().caveats)
    assert len(job.losses) == 5


def test_an_object_counts_more_than_a_pattern_and_the_rest_of_that_stays(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job()
    sentinel.keep_slow(job.model[0].weight)
    plan = job.placed(fast="80%", keep_fast="[06].weight")
    assert (tiers_of(plan, "0.weight"), tiers_of(plan, "6.weight")) == ({1}, {0})
    said = capsys.readouterr().err
    assert said.count("0.weight slow, not as '[06].weight'") == 1
    assert "so nothing is kept" not in said


def test_an_object_counts_more_than_its_name() -> None:
    job = Job()
    sentinel.keep_slow(job.model[0].weight)
    pins, _ = pins_of_job(Pins(fast=("0.weight", "6.*")), TrainingJob([job.model], [job.optimizer]))
    assert pins == Pins(fast=("6.*",), slow=("0.weight",))
    kept = fast_bytes_of(Pins(fast=("?.weight",), slow=pins.slow), TrainingJob([job.model], [job.optimizer]))
    assert sorted(kept) == ["2.weight", "4.weight", "6.weight"]


SWAPPED = make_profile([param(name, 8 * MIB, layers) for name, layers in (("p", [0]), ("a", [2, 3]), ("b", [3, 4]))], 8)


@pytest.mark.parametrize(
    ("pins", "told", "left"),
    [
        (Pins(fast=("p",)), r"no plan keeps these tensors fast \(.*\); so nothing is kept fast$", Pins()),
        (Pins(slow=("p",)), "no slower tier of built can be used in place; so nothing is kept slow$", Pins()),
        (Pins(fast=("a",), slow=("p",)), "can be used in place; so nothing is kept slow$", Pins(fast=("a",))),
    ],
)
def test_what_leaves_no_plan_where_slow_memory_cannot_be_used_in_place_is_left_out(
    pins: Pins, told: str, left: Pins
) -> None:
    planning = Planning(Request(fast=20 * MIB), make_machine(20 * MIB, addressable=False), 20 * MIB, lambda: pins)
    plan = planning.planned(Dataflow(profile=SWAPPED)).plan
    assert plan is not None
    assert pins_of(plan.details) == left
    assert len(planning.notes()) == 1
    assert re.search(told, planning.notes()[0])


def test_a_pattern_that_names_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Job().placed(fast="50%", keep_fast="embed.*")
    assert "'embed.*' matches no parameter, buffer or optimizer state" in capsys.readouterr().err


def test_a_loop_that_is_found_keeps_them_too() -> None:
    job = Job()
    sentinel.keep_slow("2.*")
    with sentinel.placing(fast="60%", **EMULATED):
        for _ in range(6):
            job.step()
        last = session.current()
        assert last is not None
        assert last.plan is not None
        assert tiers_of(last.plan, "2.weight") == {1}


def test_under_a_loop_that_is_found_too_much_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job()
    sentinel.keep_fast(job.model)
    with sentinel.placing(fast="512KiB", **EMULATED):
        for _ in range(6):
            job.step()
        assert sentinel.active()
    assert capsys.readouterr().err.count("so nothing is kept fast\n") == 1


def test_a_saved_plan_keeps_them(tmp_path: Path) -> None:
    job = Job()
    plan = job.placed(fast="60%", keep_slow="2.*")
    sentinel.stop()
    sentinel.save(plan, tmp_path / "plan.json")
    loaded = sentinel.load(tmp_path / "plan.json")
    assert pins_of(loaded.details) == pins_of(plan.details)
    other = Job()
    other.model.append(nn.Linear(WIDTH, WIDTH))  # it fits no more, and is made again with the same pins
    other.optimizer = torch.optim.AdamW(other.model.parameters())
    other.step()
    with sentinel.annotate(other.model, other.optimizer):
        sentinel.start_profile(plan=tmp_path / "plan.json", **EMULATED)
        for _ in range(4):
            other.step()
        last = session.current()
        assert last is not None
        assert last.plan is not None
        assert len(last.plan.slots) != len(plan.slots)
        assert tiers_of(last.plan, "2.weight") == {1}


def test_the_last_word_counts_and_what_is_gone_is_forgotten() -> None:
    job = Job()
    weight = job.model[0].weight
    sentinel.keep_fast(weight, "a.*")
    sentinel.keep_slow(weight)
    assert [where for where, _ in RUNTIME.kept] == ["fast", "slow"]
    del weight, job
    gc.collect()
    sentinel.keep_fast("a.*")
    assert RUNTIME.kept == [("fast", "a.*")]


def test_the_last_word_counts_on_a_module_and_on_a_tensor_of_it() -> None:
    job = Job()
    at = TrainingJob([job.model], [job.optimizer])
    sentinel.keep_fast(job.model)
    sentinel.keep_slow(job.model[0].weight)
    pins, told = pins_of_job(Pins(), at)
    assert (pins.slow, "0.weight" in pins.fast, "0.bias" in pins.fast, told) == (("0.weight",), False, True, ())
    sentinel.keep_fast(job.model)
    pins, _ = pins_of_job(Pins(), at)
    assert (pins.slow, "0.weight" in pins.fast) == ((), True)


class Compared(str):
    """A pattern that counts how often it is compared."""

    __slots__ = ()
    times = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)


def test_patterns_are_looked_up_among_what_is_kept_and_not_tried_in_turn() -> None:
    job = Job()
    sentinel.keep_fast(job.model)
    patterns = (*(Compared(f"{number}.other") for number in range(100)), Compared("0.weight"))
    pins, _ = pins_of_job(Pins(slow=patterns), TrainingJob([job.model], [job.optimizer]))
    assert pins.slow == patterns[:-1]
    assert Compared.times < 3 * len(patterns)


@pytest.mark.parametrize("wrong", [3, None, [torch.ones(3)]])
def test_what_is_neither_tensor_nor_module_nor_pattern(wrong: object) -> None:
    with pytest.raises(sentinel.UsageError, match="is not accepted"):
        sentinel.keep_fast(torch.ones(1), wrong)
    assert RUNTIME.kept == [], "all of it or nothing"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"keep_fast": 3}, "a value of type int is not accepted"),
        ({"keep_fast": ["a", 3]}, "is not a pattern of names"),
        ({"smallest": "64KB"}, "KiB"),
        ({"keep_slow": "a", "slow": "file:/tmp"}, "on a file nothing is planned"),
    ],
)
def test_wrong_words_are_refused(words: dict[str, object], told: str) -> None:
    with pytest.raises(sentinel.UsageError, match=told):
        sentinel.start_profile(**{"fast": "64MiB", **words})
    assert not sentinel.active()


def test_small_tensors_of_a_module_are_left_out_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job()
    job.model.extend([nn.Unflatten(1, (8, WIDTH // 8)), nn.BatchNorm1d(8)])
    job.optimizer = torch.optim.AdamW(job.model.parameters())
    sentinel.keep_fast(job.model)
    plan = job.placed(fast="80%")
    assert tiers_of(plan, "6.weight") == {0}
    assert pins_of(plan.details).fast == tuple(
        f"{layer}.{kind}" for layer in (0, 2, 4, 6) for kind in ("weight", "bias")
    )
    assert "matches no parameter" not in capsys.readouterr().err


def test_names_of_tied_tensors_all_name_them_and_strangers_are_told() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(64, 64), "head": nn.Linear(64, 64, bias=False)})
    model["head"].weight = model["table"].weight
    stranger = torch.ones(64)
    sentinel.keep_slow(stranger)
    pins, told = pins_of_job(Pins(fast=("head.*",)), TrainingJob([model], []))
    assert pins.fast == ("head.*", "table.weight")
    assert fast_bytes_of(pins, TrainingJob([model], [])) == {"table.weight": 64 * 64 * 4}
    assert told == ("1 tensors of keep_fast or keep_slow belong to no model or optimizer of this job",)
