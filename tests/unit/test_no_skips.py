"""The option that keeps CI from passing by skipping."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """One test that passes, and one that is skipped for want of a flux capacitor, under our own conftest.py."""
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\nmarkers = needs slow alone\n")
    pytester.makepyfile(
        "import pytest\ndef test_runs(): pass\ndef test_skips(): pytest.skip('needs flux capacitor: build one')\n"
    )
    return pytester


def test_a_skip_passes_when_nothing_is_required(suite: pytest.Pytester) -> None:
    assert suite.runpytest_inprocess().ret == 0


def test_a_skip_for_something_else_passes(suite: pytest.Pytester) -> None:
    assert suite.runpytest_inprocess("--no-skips", "torch,flux").ret == 1
    assert suite.runpytest_inprocess("--no-skips", "torch,capacity").ret == 0


def test_a_skip_for_a_required_capability_fails_and_is_named(suite: pytest.Pytester) -> None:
    done = suite.runpytest_inprocess("--no-skips", "torch,flux capacitor")
    assert done.ret == 1
    done.assert_outcomes(passed=1, skipped=1)
    assert "flux capacitor: build one" in done.stdout.str().split("ruled out by --no-skips")[1]


def test_it_holds_for_tests_and_modules_skipped_by_a_process_beside_this_one(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CONFTEST.parents[1]))  # for the conftest.py, in the other process
    suite.makepyfile(test_whole="import pytest\npytest.skip('needs warp core: find one', allow_module_level=True)\n")
    done = suite.runpytest_subprocess("-n", "1", "--no-skips", "torch,flux capacitor,warp core")
    assert done.ret == 1
    told = done.stdout.str().split("ruled out by --no-skips")[1]
    assert "flux capacitor: build one" in told
    assert "warp core: find one" in told


def test_a_slow_test_that_begins_too_late_is_left_out_and_named(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.makepyfile("import pytest\ndef test_quick(): pass\n@pytest.mark.slow\ndef test_takes_long(): pass\n")
    for until, left_out in ((0.0, 1), (time.time() + 3600, 0)):
        monkeypatch.setenv("SLOW_TESTS_BEGIN_UNTIL", str(until))
        done = suite.runpytest_inprocess("--no-skips", "torch")
        assert done.ret == 0
        done.assert_outcomes(passed=2 - left_out, skipped=left_out)
        assert ("1 slow tests were left out" in done.stdout.str()) == bool(left_out)
        assert ("::test_takes_long" in done.stdout.str()) == bool(left_out)
