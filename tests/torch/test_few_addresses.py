"""Limits on address space and on private memory, as clusters set: a small job runs within them, and the report says so
where that leaves little."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]

SCRIPT = """
import sys, torch, sentinel
torch.set_num_threads(1)

def trained(ours):
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(7):
        if ours and step == 1:
            sentinel.annotate(model, optimizer)
            sentinel.start_profile(fast="30%", slow="emulated:cxl-asic-x8", tracker="auto")
        optimizer.zero_grad()
        model(torch.randn(64, 128)).square().mean().backward()
        optimizer.step()
        if ours and step == 1:
            sentinel.end_profile()
    return list(model.parameters())

pairs = list(zip(trained(False), trained(True)))
print("identical", all(torch.equal(*pair) for pair in pairs))
print("steps", len(sentinel.stop().steps))
print(sentinel.report().text())
"""
LEFT = """
import resource, sentinel
from sentinel import session
begin = sentinel.start_profile
def start(**asked):
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20),) * 2)
    begin(**asked)
sentinel.start_profile = start
"""
"""256 MiB left as the session begins: the log of the profiled step alone takes more."""
SAYS = "ulimit -v"
GIB = 1 << 30


def under(nbytes: int | None, kind: int = resource.RLIMIT_AS) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if nbytes is not None:
            resource.setrlimit(kind, (nbytes, nbytes))

    return subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, preexec_fn=limit, check=False, timeout=600
    )


@pytest.mark.parametrize("nbytes", [None, 6 * GIB])
def test_a_small_job_runs_and_is_told_of_the_limit(nbytes: int | None) -> None:
    ended = under(nbytes)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "identical True\nsteps 5\n" in ended.stdout
    assert (SAYS in ended.stdout) == (nbytes is not None)


def test_a_limit_on_private_memory_is_kept_by_what_was_watched() -> None:
    """Pages were watched in shared memory, which does not count: what is private again must count as before."""
    ended = under(4 * GIB, resource.RLIMIT_DATA)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "identical True\nsteps 5\n" in ended.stdout
    assert SAYS not in ended.stdout


def test_a_limit_that_leaves_too_little_is_an_error_that_names_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEFT + SCRIPT], capture_output=True, text=True, check=False, timeout=600
    )
    assert ended.returncode != 0
    assert SAYS in ended.stderr.splitlines()[-1], ended.stderr
