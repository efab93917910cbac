"""What only a process of its own can show: its end, its children, its peak, its profiler, its compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.system.compiler import _compiler  # noqa: E402

pytestmark = pytest.mark.needs("compiler")

SOURCE = Path(__file__).parents[2]
START = """
import os, sys, threading
import torch
from torch import nn
from sentinel.migration.memory import ManagedMemory
torch.manual_seed(0)
torch.set_num_threads(1)
"""


def run(program: str, **environment: str) -> str:
    """What `program` prints; it and its children end without a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("uninstalled", [True, False])
def test_a_process_ends_well_with_storages_alive(uninstalled: bool) -> None:
    """Some die after static destructors: a module global, a reference cycle, one in a thread's locals."""
    out = run(
        f"""
        memory = ManagedMemory.install()
        memory.record()
        kept = [torch.ones(50021) for _ in range(20)]
        cycle = [torch.ones(5003)]; cycle.append(cycle)
        sys.kept = nn.LSTM(32, 64)
        sys.kept(torch.randn(3, 2, 32))
        if {uninstalled}:
            memory.uninstall()
        del cycle
        print(int(kept[3].sum()))
        """
    )
    assert out.strip() == "50021"


def test_workers_of_a_data_loader_are_forked_at_will() -> None:
    out = run(
        """
        from torch.utils.data import DataLoader, Dataset
        memory = ManagedMemory.install()
        memory.record()
        weights = torch.arange(10007.0)
        class Rows(Dataset):
            def __len__(self): return 64
            def __getitem__(self, i): return torch.full((2003,), float(i)) + weights[i]
        loader = DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context="fork")  # once the default
        total = sum(batch.sum().item() for _ in range(3) for batch in loader)
        assert torch.equal(weights, torch.arange(10007.0))
        print(total == 3 * 2003 * 2 * sum(range(64)))
        """
    )
    assert out.strip() == "True"


@pytest.mark.slow
def test_no_forked_child_hangs_while_threads_allocate() -> None:
    out = run(
        """
        import signal
        memory = ManagedMemory.install()
        memory.record()
        stop = threading.Event()
        def work():
            while not stop.is_set():
                torch.ones(2003).mul_(2)
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads: thread.start()
        held, bad = torch.ones(2003), 0
        for i in range(200):
            pid = os.fork()
            if pid == 0:
                signal.alarm(300)
                child = held.clone()
                del held
                os._exit(0 if child.sum().item() == 2003 else 1)
            bad += os.waitpid(pid, 0)[1] != 0
        stop.set()
        for thread in threads: thread.join()
        print(bad, int(held.sum()))
        """
    )
    assert out.split() == ["0", "2003"]


@pytest.mark.parametrize("fork_in", [0, 1, 2, 7])
def test_a_child_that_trains_on_and_exits_tells_nothing(fork_in: int) -> None:
    """Forked in the recorded step, before the round that is recorded again, within it, and where a plan is applied."""
    out = run(
        f"""
        import sentinel
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        inputs = torch.randn(16, 64)
        children = []
        def forward():
            out = model(inputs)
            if step == {fork_in} and not children:
                children.append(os.fork())
            return out
        def train():
            forward().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        sentinel.annotate(model, optimizer)
        sentinel.start_profile(fast="50%", slow="emulated:cxl-asic-x8", tracker="ops")
        for step in range(12):
            train()
            if children == [0]:
                for _ in range(6): train()
                assert not sentinel.active()
                sys.stdout = open(os.devnull, "w")
                sys.exit()
            if step == 0:
                sentinel.end_profile()
        assert os.waitpid(children[0], 0)[1] == 0
        print(sentinel.stop().counters.steps > 0)
        """,
        PYTHONWARNINGS="error:sentinel:RuntimeWarning",
    )
    assert out.strip() == "True"


TOTALS = """
def totals():
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64)), torch.randn(32, 128)
    with torch.profiler.profile(profile_memory=True) as profile:
        model(x).square().sum().backward()
    rows = profile.key_averages()
    return sorted((r.key, r.count, r.self_cpu_memory_usage) for r in rows if r.self_cpu_memory_usage)
"""


def test_torchs_profiler_sees_the_same_memory() -> None:
    out = run(
        TOTALS
        + textwrap.dedent(
            """
            stock = totals()
            memory = ManagedMemory.install()
            memory.record()
            recorded = totals()
            memory.pass_through()
            print(bool(stock), recorded == stock, totals() == stock)
            """
        )
    )
    assert out.split() == ["True", "True", "True"]


@pytest.mark.slow
def test_peak_memory_is_no_higher_than_stock() -> None:
    """But for pages of libraries: of those there are as many as the page cache has around each that is used."""
    program = """
        def kib(name):
            (line,) = (line for line in open("/proc/self/status") if line.startswith(name))
            return int(line.split()[1])
        memory = ManagedMemory.install() if {managed} else None
        if memory: memory.record()
        open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
        model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(512, 1024)).sum().backward()
            optimizer.step()
        print(kib("VmHWM:") - kib("RssFile:"))
        """
    stock, ours = (int(run(program.format(managed=managed))) for managed in (False, True))
    assert ours < 1.02 * stock


FOREIGN = """
#include <c10/core/CPUAllocator.h>
struct Somebodys final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override { return c10::GetDefaultCPUAllocator()->allocate(n); }
  void copy_data(void *to, const void *from, std::size_t n) const override { default_copy_data(to, from, n); }
};
extern "C" void hold(int priority) { c10::SetCPUAllocator(new Somebodys, static_cast<uint8_t>(priority)); }
"""


@pytest.mark.parametrize("priority", [0, 1])
def test_an_allocator_in_the_way_is_named(tmp_path: Path, priority: int) -> None:
    (tmp_path / "foreign.cpp").write_text(FOREIGN)
    out = run(
        f"""
        import ctypes, pathlib
        from sentinel.core.errors import CapabilityError
        from sentinel.system.compiler import Library, compile_once
        root = pathlib.Path(torch.__file__).parent
        flags = ("-std=c++20", "-fPIC", "-DNDEBUG", f"-isystem{{root}}/include")
        source = pathlib.Path({str(tmp_path / "foreign.cpp")!r})
        built = compile_once(Library("foreign", (source,), (), flags, (f"-L{{root}}/lib", "-lc10")))
        ctypes.CDLL(str(built)).hold({priority})
        try:
            ManagedMemory.install()
        except CapabilityError as error:
            print(error.why, torch.ones(5003).sum().item())
        """
    )
    assert out.split() == ["Somebodys", "holds", "it", "5003.0"]


@pytest.mark.slow
@pytest.mark.needs("static C++ runtime")
def test_torchs_errors_pass_what_a_compiler_made_that_links_its_runtime_statically(tmp_path: Path) -> None:
    """Some installations of GCC have no other. With one of them a process was killed by SIGSEGV where torch ran out of
    memory. With others the error passes all the same, so what is made is looked at, too."""
    compiler = tmp_path / "c++"
    compiler.write_text(f'#!/bin/sh\nexec {_compiler("this test")} -static-libstdc++ "$@"\n')
    compiler.chmod(0o700)
    out = run(
        """
        memory = ManagedMemory.install()
        memory.record()
        try:
            torch.empty(1 << 56, dtype=torch.uint8)
        except RuntimeError as error:
            print("can't allocate memory" in str(error))
        print(int(torch.ones(5003).sum()))
        """,
        CXX=str(compiler),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert out.split() == ["True", "5003"]
    (made,) = (tmp_path / "cache").rglob("sentinel_torch.so")
    command = ["readelf", "--dynamic", str(made)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    assert "[libstdc++.so.6]" in told


def test_without_a_compiler_the_remedy_is_named_and_nothing_changed(tmp_path: Path) -> None:
    out = run(
        """
        from sentinel.core.errors import CapabilityError
        try:
            ManagedMemory.install()
        except CapabilityError as error:
            print(error.remedy)
        assert torch.ones(5003).sum() == 5003
        """,
        PATH=str(tmp_path),
        CXX="",
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert "apt-get install g++" in out
