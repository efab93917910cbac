"""The parts under save and load: whole files, containers, upgrades of earlier versions, numbers that cannot be."""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path

import pytest

from sentinel.core.errors import FormatError
from sentinel.core.machine import Link, Machine
from sentinel.core.run import Witnessed
from sentinel.core.trace import LayerId
from sentinel.files import containers, disk
from sentinel.files.earlier_versions import upgraded
from sentinel.files.formats import BY_NAME
from sentinel.files.validity import problem_of
from tests.builders import GB, make_machine, make_profile, param, persistent_plan
from tests.unit.report_builders import SIMULATED

PROFILE = make_profile([param("weight", 5000, [0, 1])], 2)
RUN_1 = BY_NAME["sentinel-run"].of_version(1)


def test_a_file_is_written_whole_or_the_old_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan"
    disk.write_whole(path, b"first")

    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FormatError, match="No space left on device"):
        disk.write_whole(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_keeps_pointing_where_it_did(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    disk.write_whole(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"x"


def test_what_is_no_regular_file_of_that_length_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "long").write_bytes(bytes(17))
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("", "a directory"), ("pipe", "a pipe"), ("empty", "is empty"), ("long", "more than the 16 B")):
        with pytest.raises(FormatError, match=why), disk.open_regular(tmp_path / name, 16):
            pass
    with disk.open_regular(tmp_path / "long", 17) as (file, nbytes):
        assert disk.read_exactly(file, nbytes, "long") == bytes(17)
        with pytest.raises(FormatError, match="ended after 0 of 1 bytes"):
            disk.read_exactly(file, 1, "long")


def test_a_folder_that_is_missing_is_told_before_the_work(tmp_path: Path) -> None:
    disk.check_writable(tmp_path / "new")
    with pytest.raises(FormatError, match="there is no folder"):
        disk.check_writable(tmp_path / "none" / "new")


def test_a_container_is_read_as_it_was_rendered_and_refused_where_cut() -> None:
    data = containers.render(PROFILE)
    again = containers.parse("p", io.BytesIO(data), len(data))
    assert containers.render(again) == data
    for nbytes in (8, 100, len(data) - 1):
        with pytest.raises(FormatError):
            containers.parse("p", io.BytesIO(data[:nbytes]), nbytes)


def test_words_among_the_counters_of_version_1_become_rows() -> None:
    old = {"counters": {"steps": 3, "pages moved by NUMA balancing to node 1": 5, "witness records lost": 2}}
    told = upgraded(RUN_1, old)
    assert told["counters"]["steps"] == 3
    row = {"reason": "numa_misplaced", "own": False, "node": 1, "pages": 5}
    assert (told["witnessed"]["moved_by"], told["witnessed"]["lost"]) == ([row], 2)
    assert upgraded(BY_NAME["sentinel-run"], old) is old  # of today: nothing is changed
    assert upgraded(RUN_1, 7) == 7  # for the decoder to refuse


def _with_tiers(count: int) -> Machine:
    machine = make_machine()
    slower = [dataclasses.replace(machine.tiers[1], name=f"slow {tier}") for tier in range(1, count)]
    links = [Link(*pair, GB) for tier in range(1, count) for pair in ((tier, 0), (0, tier))]
    return dataclasses.replace(machine, tiers=(machine.fast, *slower), links=tuple(links))


def test_numbers_that_cannot_be_are_named() -> None:
    sound = (PROFILE, make_machine(), persistent_plan(PROFILE, [0]), SIMULATED)
    assert [problem_of(noun) for noun in sound] == [""] * 4
    assert "negative" in problem_of(dataclasses.replace(PROFILE, n_events=-1))
    assert problem_of(_with_tiers(64)) == ""
    assert problem_of(_with_tiers(65)) == "more than 64 tiers"
    layers = (LayerId("block", 1), LayerId("block", 0))
    swapped = dataclasses.replace(persistent_plan(PROFILE, [0]), layers=layers)
    assert problem_of(swapped).startswith("layer block#1 stands where block is expected")
    assert "witness is negative" in problem_of(dataclasses.replace(SIMULATED, witnessed=Witnessed(lost=-1)))
