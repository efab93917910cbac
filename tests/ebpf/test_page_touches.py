"""The prebuilt eBPF program: small, current, exact, and gone when its tracker is."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sentinel.core.errors import FormatError, NativeError
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages import AddressRange, armed_tracker, bpf_calls, ebpf, make, native_touch, obstacle
from sentinel.profiler.pages.bpf_object import read_programs

SOURCE = Path(__file__).parents[2] / "ebpf"
PAGES = 4099


@pytest.fixture
def owned() -> Iterator[AddressRange]:
    refused = obstacle("ebpf")
    if refused is not None:
        pytest.skip(f"needs tracker ebpf: {refused}")
    taken = native_touch.map_range(PAGES * PAGE_BYTES)
    yield taken
    native_touch.unmap_range(taken)


def test_the_object_is_small_and_names_its_maps() -> None:
    assert ebpf.OBJECT.stat().st_size < 30 * 1024
    programs = read_programs(ebpf.OBJECT, "raw_tp/")
    assert [program.section for program in programs] == ["raw_tp/page_fault_user", "raw_tp/page_fault_kernel"]
    assert {name for program in programs for _, name in program.maps} == {"control", "seen", "totals"}


@pytest.mark.skipif(not (shutil.which("clang") and shutil.which("make")), reason="needs clang: apt-get install clang")
def test_the_object_is_that_of_the_source(tmp_path: Path) -> None:
    made = subprocess.run(
        ["make", "-C", SOURCE, f"OUT={tmp_path}"], capture_output=True, text=True, check=False, timeout=600
    )
    if "bpf/bpf_helpers.h" in made.stderr:
        pytest.skip("needs libbpf's headers: apt-get install libbpf-dev")
    assert made.returncode == 0, made.stderr
    fresh, shipped = (read_programs(path, "raw_tp/") for path in (tmp_path / ebpf.OBJECT.name, ebpf.OBJECT))
    assert [(p.section, p.maps) for p in fresh] == [(p.section, p.maps) for p in shipped]


@pytest.mark.parametrize("length", [0, 5, 63, 700, 2000])
def test_a_truncated_object_says_so(length: int, tmp_path: Path) -> None:
    short = tmp_path / "short.bpf"
    short.write_bytes(ebpf.OBJECT.read_bytes()[:length])
    with pytest.raises(FormatError, match="make -C ebpf"):
        read_programs(short, "raw_tp/")


def test_every_fault_is_counted(owned: AddressRange) -> None:
    """All pages in 7 layers; a prime number of them written; none lost."""
    tracker = make("ebpf")
    ctypes.memset(owned.start, 1, owned.nbytes)
    tracker.start([owned])
    for layer in range(7):
        tracker.mark(layer)
        ctypes.string_at(owned.start, owned.nbytes)
        ctypes.memset(owned.start, layer, 1009 * PAGE_BYTES)
    samples = tracker.stop()
    assert samples.quality.lost == 0
    assert len(samples.pages) == 7 * PAGES
    assert int(samples.pages["reads"].sum()) == 7 * PAGES
    assert int(samples.pages["writes"].sum()) == 7 * 1009


def test_other_processes_do_not_count(owned: AddressRange) -> None:
    """A child has memory at the same addresses; its touches are its own."""
    tracker = make("ebpf")
    tracker.start([owned])
    tracker.mark(0)
    child = os.fork()
    if child == 0:
        ctypes.memset(owned.start, 1, owned.nbytes)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(tracker.stop().pages) == 0


def test_what_has_no_cell_counts_as_lost(owned: AddressRange, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = armed_tracker._layout

    def short(ranges: list[AddressRange]) -> tuple[int, list[tuple[AddressRange, int]]]:
        pages, layout = whole(ranges)
        return pages - 1000, layout

    monkeypatch.setattr(armed_tracker, "_layout", short)
    tracker = make("ebpf")
    tracker.start([owned])
    tracker.mark(0)
    ctypes.memset(owned.start, 1, owned.nbytes)
    samples = tracker.stop()
    assert len(samples.pages) + samples.quality.lost == PAGES
    assert 0 < samples.quality.lost <= 1000


def test_several_ranges(owned: AddressRange) -> None:
    others = [native_touch.map_range(pages * PAGE_BYTES) for pages in (1, 2, 3, 5, 7)]
    tracker = make("ebpf")
    tracker.start([owned, *others])
    tracker.mark(0)
    for other in others:
        ctypes.memset(other.stop - 1, 1, 1)
    samples = tracker.stop()
    for other in others:
        native_touch.unmap_range(other)
    assert samples.pages["page"].tolist() == sorted(other.stop // PAGE_BYTES - 1 for other in others)
    assert np.all(samples.pages["writes"] == 1)


def test_the_verifier_is_quoted() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    endless = bytes.fromhex("05000000000000 00".replace(" ", ""))  # jumps nowhere, never exits
    with pytest.raises(NativeError, match="program load") as refused:
        bpf_calls.Descriptors().load_program(endless, "GPL")
    assert len(str(refused.value)) > len("bpf(program load): Invalid argument (errno 22)")


def test_an_interrupt_as_a_watch_ends_takes_nothing_from_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's table went while the watch still ran: the next call that ended it read freed memory."""
    if (refused := obstacle("ebpf")) is not None:
        pytest.skip(f"needs tracker ebpf: {refused}")
    stop = native_touch.touch_stop

    def interrupted() -> bool:
        monkeypatch.setattr(native_touch, "touch_stop", stop)
        raise KeyboardInterrupt

    monkeypatch.setattr(native_touch, "touch_stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make("ebpf").try_here()
    assert stop(), "nothing runs that could be stopped"
    with pytest.raises(NativeError, match="sn_touch_mark"):
        native_touch.touch_mark(0)
    make("ebpf").try_here()


def test_runs_that_the_kernel_left_out_are_lost(owned: AddressRange, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = make("ebpf")
    tracker.start([owned])
    tracker.mark(0)
    monkeypatch.setattr(bpf_calls, "missed_runs", lambda program: 3)
    assert tracker.stop().quality.lost == 3 * len(read_programs(ebpf.OBJECT, "raw_tp/"))


def test_missed_runs_are_read_where_the_kernel_has_them(tmp_path: Path) -> None:
    """By the kernel's own header, where one is installed that has the field."""
    compiler, source, made = shutil.which("cc"), tmp_path / "offsets.c", tmp_path / "offsets"
    if not compiler:
        pytest.skip("needs a C compiler: apt-get install gcc")
    source.write_text(
        "#include <linux/bpf.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        'int main(void) { printf("%zu %zu %d", offsetof(struct bpf_prog_info, recursion_misses),'
        " sizeof(struct bpf_prog_info), BPF_OBJ_GET_INFO_BY_FD); }\n"
    )
    if subprocess.run([compiler, source, "-o", made], capture_output=True, check=False, timeout=600).returncode:
        pytest.skip("needs the kernel's headers: apt-get install linux-libc-dev")
    offset, size, command = map(
        int, subprocess.run([made], capture_output=True, check=True, timeout=600).stdout.split()
    )
    assert (offset, command) == (bpf_calls._MISSES_AT, bpf_calls._INFO_BY_FD)
    assert offset + 8 <= bpf_calls._INFO_BYTES <= size
