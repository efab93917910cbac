"""The tables of a report say what the nouns say."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from sentinel.core.run import OUTCOMES
from sentinel.reports import Report, build_report
from tests.builders import MIB
from tests.unit.report_builders import PLAN, PROFILE, SIMULATED, full_report


@pytest.fixture(scope="module")
def full() -> Report:
    return full_report()


COLUMNS = {
    "tensors": "tensor role nbytes first_layer last_layer touched_layers tier managed reason",
    "accesses": "tensor layer pages_touched pages_written reads writes",
    "migrations": "step layer block source target nbytes reason start_ns stop_ns outcome",
    "layers": "layer name phase duration_ns flops nbytes_touched stall_ns",
    "footprint": "layer role nbytes",
    "steps": "step duration_ns stall_ns",
}


@pytest.mark.parametrize(("name", "columns"), COLUMNS.items())
def test_frames_have_the_promised_columns(full: Report, name: str, columns: str) -> None:
    assert set(columns.split()) <= set(full.frames()[name].columns)
    assert set(map(str, full.frames()[name].dtypes)) <= {"Int64", "Float64", "string", "boolean"}


def test_frames_say_what_the_nouns_say(full: Report) -> None:
    frames = full.frames()
    tensors = frames["tensors"].set_index("tensor")
    assert list(tensors.index) == list(PROFILE.names)
    assert tuple(tensors.loc["layer1.weight", ["role", "nbytes", "first_layer", "last_layer", "touched_layers"]]) == (
        *("param", 2 * MIB, 0, 7),
        2,
    )
    assert tuple(tensors.loc["round", ["first_layer", "last_layer", "lifetime_layers"]]) == (6, 0, 3)
    assert set(tensors["tier"].dropna()) <= {"fast", "slow"}
    assert tensors.loc["alias.weight", "reason"] == "shared"
    assert not tensors.loc["alias.weight", "managed"]
    assert pd.isna(tensors.loc["alias.weight", "tier"])
    accesses = frames["accesses"]
    assert accesses["pages_touched"].isna().all(), "this tracker does not see pages"
    assert set(accesses["tensor"]) <= set(PROFILE.names)
    assert frames["layers"]["name"].tolist() == ["h.0", "h.1", "h.2", "h.3", "h.3", "h.2", "h.1", "h.0"]
    assert frames["layers"]["flops"].isna().all()
    assert len(frames["migrations"]) == len(SIMULATED.migrations)
    assert set(frames["migrations"]["outcome"]) <= set(OUTCOMES)
    touched = {layer: rows["touched_bytes"].sum() for layer, rows in accesses.groupby("layer")}
    assert frames["layers"].set_index("layer")["nbytes_touched"].to_dict() == touched


def test_pages_and_counts_that_are_unknown_are_missing_not_minus_one() -> None:
    rows = PROFILE.accesses.copy()
    rows["pages_touched"][0], rows["pages_written"][0], rows["reads"][1] = 3, 0, -1
    frames = build_report(profile=dataclasses.replace(PROFILE, accesses=rows)).frames()
    assert frames["accesses"]["pages_touched"].tolist()[0] == 3
    assert frames["accesses"]["pages_written"].tolist()[0] == 0
    assert frames["accesses"]["pages_touched"].isna().sum() == len(rows) - 1
    assert pd.isna(frames["accesses"]["reads"][1])
    first = frames["tensors"].set_index("tensor").loc[PROFILE.names[rows["extent"][1]]]
    assert pd.isna(first["reads"]), "a sum with an unknown part is unknown"


def test_without_a_run_the_migrations_are_the_planned_ones() -> None:
    moves = build_report(profile=PROFILE, plan=PLAN).frames()["migrations"]
    assert len(moves) == len(PLAN.migrations) > 0
    for column in ("step", "start_ns", "stop_ns", "outcome", "moved_bytes"):
        assert moves[column].isna().all()


def test_callers_cannot_spoil_the_report(full: Report) -> None:
    full.frames().pop("tensors")
    assert "tensors" in full.frames()
