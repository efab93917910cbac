"""`with sentinel.placing(...)`: a loop trains to the same bits, whatever ends it, and nothing of ours is left."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers
from torch import nn

import sentinel
from sentinel import session
from sentinel.profiler.step_period import PATIENCE
from sentinel.runtime import RUNTIME
from sentinel.session import auto, set_overrides
from sentinel.session.placing import Options, Placing
from sentinel.session.request import Request, settled
from sentinel.system.configuration import NAMES
from tests import warm

pytestmark = pytest.mark.needs("torch", "compiler")

EMULATED = {"slow": "emulated:cxl-asic-x8", "tracker": "ops"}


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings, and no optimizers, from elsewhere; and after each test, nothing that looks for loops."""
    annotated = RUNTIME.models.in_order()
    monkeypatch.setattr(auto, "_alive", list)
    for name in NAMES:
        monkeypatch.delenv(f"SENTINEL_{name.upper()}", raising=False)
    monkeypatch.setattr(RUNTIME, "configured", None)
    monkeypatch.setattr(RUNTIME, "last", None)
    yield
    assert RUNTIME.finder is None
    assert not modules._global_forward_pre_hooks
    assert not modules._global_forward_hooks
    assert not optimizers._global_optimizer_post_hooks
    assert set(RUNTIME.models.in_order()) <= set(annotated)


class Loop:
    """A model and its optimizer, always the same, and the losses that they came to."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())])
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.losses: list[str] = []

    def train(self, steps: int = 8) -> None:
        for _ in range(steps):
            loss = self.model(torch.randn(64, 64)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item().hex())


@pytest.fixture(scope="module")
def stock() -> Loop:
    loop = Loop()
    loop.train()
    return loop


def assert_same(loop: Loop, stock: Loop) -> None:
    assert loop.losses == stock.losses
    assert all(map(torch.equal, loop.model.parameters(), stock.model.parameters()))


def steps_applied() -> int:
    last = session.current()
    assert last is not None
    return len(last.stop().steps)


def test_a_plain_loop_is_placed_and_reported(stock: Loop, tmp_path: Path) -> None:
    """Twice in one process: the second one is no worse for the first."""
    for name in ("a.json", "b.json"):
        loop = Loop()
        with sentinel.placing(fast="50%", report=tmp_path / name, **EMULATED):
            loop.train(4)
            assert sentinel.active()
            loop.train(4)
        assert not sentinel.active()
        assert_same(loop, stock)
        assert steps_applied() >= 3
        headline = json.loads((tmp_path / name).read_text())["headline"]
        assert (headline["kind"], headline["steps"]) == ("emulated", steps_applied())
        assert "mulated" in sentinel.report().text()


def failing(loop: Loop, steps: int, error: type[BaseException], report: Path | None = None) -> None:
    """So many steps are placed, then comes the error."""
    with sentinel.placing(fast="50%", report=report, **EMULATED):
        loop.train(steps)
        assert sentinel.active() == (steps > 2)
        raise error


def test_an_exception_ends_it_and_goes_on(tmp_path: Path) -> None:
    loop = Loop()
    with pytest.raises(ZeroDivisionError):
        failing(loop, 6, ZeroDivisionError, tmp_path / "r.json")
    assert not sentinel.active()
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["kind"] == "emulated"
    with pytest.raises(KeyboardInterrupt):
        failing(loop, 1, KeyboardInterrupt)
    loop.train(2)


def test_an_exception_in_the_watched_step_plans_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        failing(Loop(), 3, ZeroDivisionError)  # the third is watched, and no fourth tells that it is over
    assert not sentinel.active()
    last = session.current()
    assert last is not None
    assert last.plan is None
    assert "placed" not in capsys.readouterr().err


def test_a_loop_that_is_not_there_costs_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with sentinel.placing(report=tmp_path / "r.json", **EMULATED):
        pass
    assert capsys.readouterr().err == f"sentinel: nothing was placed: {auto.NO_LOOP}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("report", [None, "r.json"])
def test_a_loop_that_ends_within_the_profiled_step_is_told(
    report: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two optimizers that take turns, only one has stepped in it."""
    one, other = Loop(), Loop()
    with sentinel.placing(fast="50%", report=report and tmp_path / report, **EMULATED):
        for loop in (one, other, one, other, one):
            loop.train(1)
    assert not sentinel.active()
    assert capsys.readouterr().err == "sentinel: nothing was placed: the loop ended within the profiled step\n"
    assert list(tmp_path.iterdir()) == []


def test_each_of_nested_placings_tells_of_its_own_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the outer one began one before the inner, and where it began none."""
    for steps in (5, 0):
        first, second = Loop(), Loop()
        with sentinel.placing(fast="50%", report=tmp_path / "outer.json", **EMULATED):
            first.train(steps)
            with sentinel.placing(fast="40%", report=tmp_path / "inner.json", **EMULATED):
                second.train(8)
        assert json.loads((tmp_path / "inner.json").read_text())["headline"]["fast"] == "40%"
        if steps:
            assert json.loads((tmp_path / "outer.json").read_text())["headline"]["fast"] == "50%"
            (tmp_path / "outer.json").unlink()
        assert not (tmp_path / "outer.json").exists()
        told = capsys.readouterr().err
        assert ("this placing() placed nothing: one within it did, and has reported" in told) == (not steps)
        (tmp_path / "inner.json").unlink()


def test_a_loop_that_does_not_train_what_another_optimizer_has_is_found_later(monkeypatch: pytest.MonkeyPatch) -> None:
    other, loop = Loop(), Loop()
    monkeypatch.setattr(auto, "_alive", lambda: [other.optimizer])
    with sentinel.placing(fast="50%", **EMULATED):
        loop.train(PATIENCE)
        assert not sentinel.active()
        loop.train(3)
        assert sentinel.active()


def test_blocks_that_the_program_chose_are_the_layers(stock: Loop) -> None:
    loop = Loop()
    with sentinel.annotate(loop.model, blocks=["3", "7"]), sentinel.placing(fast="50%", **EMULATED):
        loop.train()
        last = session.current()
        assert last is not None
        assert last.plan is not None
        names = [layer.name for layer in last.plan.layers if layer.phase == "forward"]
        assert [name[-1] for name in names] == ["3", "7"]
    assert_same(loop, stock)


def test_a_session_that_the_program_begins_itself_takes_its_place(stock: Loop) -> None:
    loop = Loop()
    with sentinel.placing(fast="50%", **EMULATED):
        loop.train(5)
        with sentinel.annotate(loop.model, loop.optimizer):
            sentinel.start_profile(fast="60%", **EMULATED)
            loop.train(1)
            sentinel.end_profile()
            loop.train(2)
            last = session.current()
            assert last is not None
            assert (last.request.fast, last.applying) == ("60%", True)
    assert not sentinel.active()
    assert_same(loop, stock)


@pytest.mark.parametrize("words", [{"policy": "magic"}, {"slow": 1}, {"plan": "none.json"}])
def test_a_session_that_the_program_begins_with_wrong_words_takes_no_place(stock: Loop, words: dict[str, Any]) -> None:
    loop = Loop()
    with sentinel.placing(fast="50%", **EMULATED):
        loop.train(5)
        with pytest.raises(sentinel.SentinelError):
            sentinel.start_profile(loop.model, loop.optimizer, **words)
        assert sentinel.active()
        loop.train(3)
    assert_same(loop, stock)
    assert steps_applied() >= 3


@pytest.mark.parametrize(
    ("words", "error", "told"),
    [
        ({"fast": "20GB"}, sentinel.UsageError, "GiB"),
        ({"fast": 0.2}, sentinel.UsageError, "a value of type float"),
        ({"slow": "nothing"}, sentinel.UsageError, "names no slow tier"),
        ({"policy": "magic"}, sentinel.UsageError, "there is no policy 'magic'"),
        ({"report": "r.pdf"}, sentinel.UsageError, "end the path in one of"),
        ({"report": "no/such/r.html"}, sentinel.FormatError, "there is no folder"),
        ({"plan": "none.json"}, sentinel.FormatError, "none.json"),
        ({"rate_limit": "fast"}, sentinel.UsageError, "rate limit 'fast'"),
        ({"cap": "8GiB", "slow": "emulated:cxl-asic-x8"}, sentinel.UsageError, "what exceeds a cap needs a file"),
    ],
)
def test_wrong_words_are_refused_before_the_loop(words: dict[str, object], error: type[Exception], told: str) -> None:
    begun = False
    with pytest.raises(error, match=told), sentinel.placing(**words):
        begun = True
    assert not begun


def test_it_takes_the_arguments_of_start_profile() -> None:
    names = {*inspect.signature(sentinel.start_profile).parameters} - {"model", "optimizer"}
    assert {*inspect.signature(sentinel.placing).parameters} == names | {"report"}
    assert set(Options.__annotations__) == names


def test_a_running_session_is_left_alone() -> None:
    sentinel.start_profile(**EMULATED)
    with pytest.raises(sentinel.UsageError, match="a session is running already"), sentinel.placing(**EMULATED):
        pass
    assert sentinel.active()
    sentinel.stop()


def test_one_whose_end_was_never_called_ends_with_the_next(stock: Loop) -> None:
    """As where a library tells nobody of an exception."""
    lost = Placing(Request(fast="50%", **EMULATED))
    lost.begin()
    Loop().train(5)
    assert sentinel.active()
    loop = Loop()
    with sentinel.placing(fast="60%", **EMULATED):
        assert not sentinel.active()
        loop.train()
        last = session.current()
        assert last is not None
        assert last.request.fast == "60%"
    assert_same(loop, stock)
    lost.end()


@pytest.mark.needs("native")
@pytest.mark.parametrize("next_slow", ["file", "emulated"])
def test_one_on_a_file_whose_end_was_never_called_ends_with_the_next(next_slow: str, stock: Loop, folder: Path) -> None:
    """As in a notebook, where an exception left a Trainer and the cell is run again."""
    on_file = {"fast": "16MiB", "slow": f"file:{folder}=64MiB"}
    lost = Placing(Request(**on_file))
    lost.begin()
    before = RUNTIME.sink
    assert before is not None
    loop = Loop()
    with sentinel.placing(**(on_file if next_slow == "file" else {"fast": "60%", **EMULATED})):
        assert RUNTIME.sink is not before
        loop.train()
    assert_same(loop, stock)
    assert not sentinel.active()
    lost.end()


@pytest.mark.needs("native")
def test_one_within_a_whole_script_on_a_file_says_that_its_report_is_not_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As under `sentinel run --slow file:...`, which has begun before the script."""
    set_overrides({"fast": "16MiB", "slow": f"file:{folder}=64MiB"})
    try:
        sentinel.start_profile()
        with sentinel.placing(report="mine.html"):
            Loop().train(2)
        said = capsys.readouterr().err
        assert "the report of the whole run tells of this placing(): report='mine.html' is not written" in said
        with sentinel.placing():
            Loop().train(2)
        assert "placing()" not in capsys.readouterr().err
    finally:
        set_overrides({})
        sentinel.stop()


@pytest.mark.needs("native")
def test_one_on_a_file_leaves_the_session_that_the_program_began_since(folder: Path) -> None:
    lost = Placing(Request(fast="16MiB", slow=f"file:{folder}=64MiB"))
    lost.begin()
    sentinel.stop()
    sentinel.start_profile(**EMULATED)
    with pytest.raises(sentinel.UsageError, match="a session is running already"):
        Placing(Request(fast="50%", **EMULATED)).begin()
    assert sentinel.active()
    sentinel.stop()
    lost.end()


def test_one_whose_end_was_never_called_leaves_the_session_that_the_program_began_since() -> None:
    lost = Placing(Request(fast="50%", **EMULATED))
    lost.begin()
    Loop().train(5)
    sentinel.start_profile(**EMULATED)
    with pytest.raises(sentinel.UsageError, match="a session is running already"):
        lost.begin()  # as with the next train()
    assert sentinel.active()
    sentinel.stop()
    lost.end()


def test_a_forked_child_that_leaves_the_with_leaves_it_to_its_parent(tmp_path: Path) -> None:
    loop, path = Loop(), tmp_path / "r.json"
    placing = Placing(Request(fast="50%", **EMULATED), path)
    placing.begin()
    loop.train(5)
    child = os.fork()
    if not child:
        try:
            placing.end()
            os._exit(3 if path.exists() else 0)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sentinel.active()
    placing.end()
    assert path.exists()


def test_arguments_come_before_the_environment(stock: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("FAST", "40%"), ("SLOW", EMULATED["slow"]), ("TRACKER", "ops"), ("REPORT", "r.json")):
        monkeypatch.setenv(f"SENTINEL_{name}", value)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for asked, expected in ((None, "40%"), ("60%", "60%")):
        loop = Loop()
        with sentinel.placing(fast=asked):
            loop.train()
            last = session.current()
            assert last is not None
            assert (last.request.fast, last.request.slow, last.applying) == (expected, EMULATED["slow"], True)
        assert_same(loop, stock)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "r.rank1.json"]
    monkeypatch.setenv("SENTINEL_FASST", "1")
    with pytest.raises(sentinel.UsageError, match="SENTINEL_FASST"):
        sentinel.start_profile(**EMULATED)


def test_the_command_line_comes_before_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_FAST", "40%")
    monkeypatch.setenv("SENTINEL_POLICY", "static")
    set_overrides({"fast": "30%"})
    try:
        wanted = session.wanted(Request(fast="20%"))
        assert (wanted.fast, wanted.policy) == ("30%", "static")
        assert session.wanted(Request(policy="lru")).policy == "lru"
        set_overrides({"policy": "sentinel"})
        assert session.wanted(Request(policy="lru")).policy == "sentinel"  # the default, but somebody says it
    finally:
        set_overrides({})
    on_file = settled(Request(slow="file:/scratch"))
    assert (on_file.fast, on_file.policy) == ("40%", "sentinel")  # nothing is planned there


def test_a_cap_goes_with_the_file_that_it_was_configured_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_CAP", "8GiB")
    assert settled(Request(slow="numa:1")).cap == "8GiB"  # and is refused: nobody named a file
    assert settled(Request()).slow == "file:auto"
    monkeypatch.setenv("SENTINEL_POLICY", "static")
    assert settled(Request()).policy == "sentinel"  # nothing is planned there
    monkeypatch.setenv("SENTINEL_SLOW", "file:/scratch")
    assert settled(Request()).cap == "8GiB"
    assert settled(Request(slow="file:/other")).cap == "8GiB"
    elsewhere = settled(Request(slow="numa:1"))
    assert (elsewhere.slow, elsewhere.cap) == ("numa:1", None)
    said = settled(Request(), ["slow"])  # `--slow auto`
    assert (said.slow, said.cap) == ("auto", None)
    assert settled(Request(cap="4GiB"), ["slow"]).slow == "file:auto"
    assert settled(Request(slow="numa:1", cap="4GiB")).cap == "4GiB"  # and is refused: a contradiction


def test_a_report_may_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with sentinel.placing(fast="50%", report="-", **EMULATED):
        Loop().train(5)
    assert "Sentinel migration report [EMULATED]" in capsys.readouterr().err


def test_a_report_that_finds_no_folder_any_more_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with sentinel.placing(fast="50%", report=folder / "r.json", **EMULATED):
        Loop().train(5)
        folder.rmdir()
    said = capsys.readouterr().err
    assert "there is no folder" in said
    assert "this is the report:\nSentinel migration report [EMULATED]" in said
    assert "clean up" not in said


@pytest.mark.parametrize(
    ("name", "library"), [("TrainerCallback", "transformers"), ("LightningCallback", "pytorch_lightning")]
)
def test_a_callback_without_its_library_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    for module in ("transformers", "pytorch_lightning", "lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in ("trainer_callback", "lightning_callback"):
        monkeypatch.delitem(sys.modules, f"sentinel.integrations.{module}", raising=False)
    with pytest.raises(sentinel.CapabilityError, match="pip install"):
        getattr(sentinel.integrations, name)
    assert not hasattr(sentinel.integrations, "Nothing")
    assert name in dir(sentinel.integrations)


ON_A_FILE = """
import contextlib, sys, torch, sentinel
from tests.torch.passive_cases import mlp

def trained(within):
    torch.manual_seed(0)
    with within:
        model, inputs, target = mlp()
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in inputs:
            (model(batch) - target).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]

torch.ones(1).sqrt()
stock = trained(contextlib.nullcontext())
placed = trained(sentinel.placing(fast="44MiB", slow="file:" + sys.argv[1], report=sys.argv[1] + "/r.json"))
assert not sentinel.active()
assert all(map(torch.equal, stock, placed))
assert sentinel.report().setup.storage.read_bytes > 0
"""


@pytest.mark.needs("native")
def test_on_a_file_what_is_built_within_is_in_frames(folder: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", ON_A_FILE, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = warm.run(command, cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    assert (folder / "r.json").exists()


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (None, False),
        (SystemExit(0), False),
        (SystemExit(), False),
        (GeneratorExit(), False),
        (SystemExit(1), True),
        (SystemExit("no"), True),
        (KeyboardInterrupt(), True),
        (ValueError(), True),
    ],
)
def test_a_loop_that_leaves_by_sys_exit_has_not_failed(
    error: BaseException | None, failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(Placing, "end", lambda _self, *, failed: told.append(failed))
    sentinel.placing().__exit__(None if error is None else type(error), error, None)
    assert told == [failed]
