"""Files of earlier versions of a format, as programs of then wrote them: read and upgraded, or refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from sentinel.core.counters import Counters
from sentinel.core.errors import FormatError
from sentinel.core.extents import RANGE_DTYPE, cut_extents
from sentinel.core.run import MovedBy, Witnessed
from sentinel.files import digest, earlier_versions, load, load_profile, load_run, save
from sentinel.files.digests import canonical, checksum
from sentinel.files.formats import BY_NAME
from sentinel.reports.facts import Facts
from tests.builders import make_profile, param, persistent_plan, profile_of_version_2
from tests.refused_files import refused

PLAN = persistent_plan(
    make_profile([param("weight", 5000, [0, 1]), param("bias", 17, [2])], 3), [1, 0], [(0, 1, 0, 0, 1), (0, 0, 1, 1, 2)]
)


def test_a_run_of_version_1_is_read_and_its_sentences_become_rows(tmp_path: Path) -> None:
    """Written by the program as it was when what the witness saw stood among the counters, in words."""
    old = Path(__file__).parent / "files_of_before" / "run-1.safetensors"
    run = load_run(old)
    assert run.witnessed == Witnessed(
        (
            MovedBy("demotion", False, -1, 17),
            MovedBy("numa_misplaced", False, 0, 13),
            MovedBy("syscall", False, 0, 11),
            MovedBy("syscall", True, 1, 2),
        ),
        unmatched=1,
        huge_pages=512,
    )
    assert run.witnessed.own_pages == 2
    assert run.counters == Counters(
        steps=2,
        migrations=1,
        migrated_bytes=8192,
        done=1,
        case1=3,
        fast_peak_bytes=65536,
        stayed={"EBUSY": 5, "EIO": 7},
    )
    save(run, tmp_path / "new")
    again = load_run(tmp_path / "new")
    assert (again.witnessed, again.counters) == (run.witnessed, run.counters)
    damaged = old.read_bytes().replace(b"node 1", b"node 2")
    assert "damaged" in refused(tmp_path / "damaged", damaged).rule


@pytest.mark.parametrize(
    "counters", [7, {"witness records lost": "x"}, {"pages moved by DAMON to node 1": -5}, {"steps": {}}]
)
def test_a_hostile_run_of_version_1_is_refused(tmp_path: Path, counters: Any) -> None:
    old = safetensors.numpy.load((Path(__file__).parent / "files_of_before" / "run-1.safetensors").read_bytes())
    form = BY_NAME["sentinel-run"].of_version(1)
    header = {"kind": "executed", "emulated": False, "tier_names": ["a", "b"], "fast_capacity_bytes": 1}
    header["counters"] = {"witness records lost": 0, **counters} if isinstance(counters, dict) else counters
    told = {"format": form.name, "version": 1, "header": header, "checksum": checksum(form, canonical(header), old)}
    (tmp_path / "run").write_bytes(safetensors.numpy.save(old, {"sentinel": canonical(told)}))
    with pytest.raises(FormatError):
        load(tmp_path / "run")


def test_a_profile_of_version_2_is_cut_as_it_is_read(tmp_path: Path) -> None:
    """It knew whole tensors, and page ranges beside them. What was planned for it names it by the digest it had."""
    found = load_profile(Path(__file__).parent / "files_of_before" / "profile-2.safetensors")
    whole = make_profile([param("table", 9 * 4096, [0, 1]), param("bias", 17, [2])], 3)
    ranges = np.array([(0, 0, 0, 2, 2, 1), (0, 1, 5, 9, 3, -1)], RANGE_DTYPE)
    assert found.extents.tolist() == [(0, 0, 8192), (0, 8192, 12288), (0, 20480, 16384), (1, 0, 17)]
    assert digest(found) == digest(cut_extents(whole, ranges))
    had = "sha256:bd7a3e53e089e145d580a1465d7c38114cd3ac855685f93f81d6292bddc38cdb"
    assert found.origin == {"host": "x", "profile": had}
    plan = dataclasses.replace(PLAN, origin={"profile": had})
    assert Facts(found, plan, None, None, None).provenance == [("plan", "profile", True)]
    other = dataclasses.replace(PLAN, origin={"profile": digest(whole)})
    assert Facts(found, other, None, None, None).provenance == [("plan", "profile", False)]
    save(found, tmp_path / "now")
    assert digest(load_profile(tmp_path / "now")) == digest(found)


def test_page_ranges_of_version_2_that_cannot_be_are_refused(tmp_path: Path) -> None:
    whole = make_profile([param("table", 9 * 4096, [0, 1])], 3)
    ranges = np.array([(0, 0, 0, 10, 2, 1)], RANGE_DTYPE)
    form, header, columns = profile_of_version_2(whole, ranges)
    told = {"format": form.name, "version": 2, "header": header, "checksum": checksum(form, canonical(header), columns)}
    rows = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    error = refused(tmp_path / "earlier", safetensors.numpy.save(rows, {"sentinel": canonical(told)}))
    assert "outside its tensor" in error.rule
    assert error.field == "header.ranges"


def test_page_ranges_of_version_2_that_make_too_many_accesses_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer that uses a tensor has a row of each of its ranges: a file of some hundred kB took all memory."""
    whole = make_profile([param("table", 8 * 4096, range(5))], 5)
    ranges = np.array([(0, 0, 2 * page, 2 * page + 1, 1, 1) for page in range(4)], RANGE_DTYPE)
    form, header, columns = profile_of_version_2(whole, ranges)
    told = {"format": form.name, "version": 2, "header": header, "checksum": checksum(form, canonical(header), columns)}
    rows = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    data = safetensors.numpy.save(rows, {"sentinel": canonical(told)})
    (tmp_path / "sound").write_bytes(data)
    assert len(load_profile(tmp_path / "sound").extents) == 8
    monkeypatch.setattr(earlier_versions, "MOST_ACCESSES", 39)  # 5 layers with 8 extents
    error = refused(tmp_path / "earlier", data)
    assert "40 accesses" in error.rule
    assert error.field == "header.ranges"
