"""A launcher is refused with the command that works, from its own command line."""

from __future__ import annotations

import argparse

import pytest

from sentinel.cli.launchers import LAUNCHERS, command_for, require_no_launcher
from sentinel.core.errors import UsageError

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")


def refused(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What `sentinel run` answers to these words after it, of which the first that has no dash is the script."""
    at = next(n for n, word in enumerate(words) if not word.startswith("-") and words[n - 1] != "--fast")
    monkeypatch.setattr("sys.argv", ["sentinel", "run", *words])
    told = argparse.Namespace(script=words[at], module="-m" in words[:at], arguments=list(words[at + 1 :]))
    with pytest.raises(UsageError) as raised:
        require_no_launcher(told)
    return raised.value.remedy.rpartition("here: `")[2].rstrip("`")


def test_the_command_has_sentinel_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("--fast", "8GiB/node", "--auto", "-m")
    assert (
        refused(monkeypatch, *own, "torch.distributed.run", "--nproc-per-node", "2", "train.py", "--epochs", "3 4")
        == "python -m torch.distributed.run --nproc-per-node 2 --no-python"
        " sentinel run --fast 8GiB/node train.py --epochs '3 4'"
    )
    assert (
        refused(monkeypatch, "torchrun", "--nproc-per-node=2", "-m", "package.train", "-m", "x")
        == "python -m torch.distributed.run --nproc-per-node=2 --no-python sentinel run -m package.train -m x"
    )


@pytest.mark.parametrize("words", [("--no-python", "sh", "x"), ("--unheard-of", "train.py"), ()])
def test_what_is_not_understood_gets_the_command_for_any_script(words: tuple[str, ...]) -> None:
    assert command_for(LAUNCHERS["torchrun"], words, []) == ""


def test_accelerate_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate: pip install '.[dev]'")
    assert (
        refused(monkeypatch, "--fast", "20%", "accelerate", "launch", "--num_processes", "2", "train.py", "-x")
        == "accelerate launch --num_processes 2 --no_python sentinel run --fast 20% train.py -x"
    )


@pytest.mark.parametrize("script", ["train.py", "torchrun.py", "run"])
def test_scripts_are_none(script: str) -> None:
    require_no_launcher(argparse.Namespace(script=script, module=False, arguments=[]))
