"""What `sentinel prove` makes of what it found: ratios, errors, verdicts on bits, and what must not be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sentinel.proving.proof_document import PredictionChanged, document
from sentinel.proving.proof_folder import ProofFolder, digest_of
from sentinel.reports import proof_rows, proof_tables
from sentinel.reports.html.proof_page import proof_page

BITS = {"losses": "l", "n_losses": 4, "parameters": "p"}
SETTINGS: dict[str, Any] = {"slow": "emulated:cxl-asic-x8", "file": True, "quick": True, "workloads": ["gpt"]}

TABLE_HEADS = (
    "processor, kernel, nodes",
    "slow memory",
    "bits as stock",
    "ours over all-fast",
    "best that moves nothing",
    "all slow",
    "ours (compared)",
    "kernel's tiering (compared)",
    "error of predicted ratios",
    "when, cells",
)
"""Of the table in docs/real-hardware.md."""


def cell(kind: str, placement: str, step_ns: int, **more: Any) -> dict[str, Any]:
    head = {"workload": "gpt", "kind": kind, "placement": placement, "began": "2026-01-01T00:01:00Z"}
    planned = {"as_planned": True, "notes": [], "fast_served_fraction": 0.5, "migrated_bytes_per_step": 1 << 20}
    steps = [step_ns - 10, step_ns, step_ns + 30]
    return {**head, "prediction": None, "steps_ns": steps, "busy_share": 0.01, **BITS, **planned, **more}


def proof(**more: Any) -> dict[str, Any]:
    cells = [
        cell("stock", "stock", 1000),
        cell("policy", "all-fast", 1100, migrated_bytes_per_step=0),
        cell("policy", "sentinel", 1320),
        cell("policy", "lru", 2200, losses="other"),
        {"workload": "gpt", "kind": "policy", "placement": "capuchin", "prediction": None, "refused": "no room"},
        {"workload": "gpt", "kind": "file", "placement": "file", "prediction": None, "failed": "ended by signal 9"},
    ]
    of = {"all-fast": {"ratio": 1.0}, "sentinel": {"ratio": 1.26}, "lru": {"ratio": 2.0}}
    return {
        "partial": "",
        "ended": "2026-01-01T01:00:00Z",
        "settings": SETTINGS,
        "emulated_machine": False,
        "injected_delays": True,
        "host": {"processor": "A Processor", "cpus": 2, "kernel": "6.12", "nodes": [{"number": 0}]},
        "doctor": {"missing": [{"name": "two nodes", "needed_for": "placing", "remedy": "a host with two"}]},
        "calibration": None,
        "machine": None,
        "predictions": {"gpt": {"workload": "gpt", "written": "2026-01-01T00:00:59Z", "digest": "d", "of": of}},
        "cells": cells,
        "kernel_placements": [],
        "not_run": {"gpt.policy.static": "there was no time for it"},
        "put_back": [],
        "contents": ["host.kernel"],
        **more,
    }


def by_name(found: dict[str, Any]) -> dict[str, proof_rows.ProvedRow]:
    return {row.placement: row for row in proof_rows.rows(found)}


def test_ratios_are_of_medians_and_errors_have_their_sign() -> None:
    ours = by_name(proof())["sentinel"]
    assert ours.over_stock == pytest.approx(1.32)
    assert ours.over_control == pytest.approx(1.2)
    assert ours.error == pytest.approx(0.05)
    assert (ours.least_ns, ours.most_ns) == (1310, 1350)


def test_of_several_rounds_each_ratio_is_within_its_round_and_the_median_counts() -> None:
    """A host that is half as fast in one round tells the same ratios, and not those of one round over another."""
    found = proof()
    for number, slower, ours in ((2, 2, 1.4), (3, 1, 1.1)):
        found["cells"] += [
            cell("stock", "stock", 1000 * slower, round=number),
            cell("policy", "all-fast", 1100 * slower, round=number, migrated_bytes_per_step=0),
            cell("policy", "sentinel", round(1100 * slower * ours), round=number),
        ]
    row = by_name(found)["sentinel"]
    assert row.ratios == pytest.approx((1.2, 1.4, 1.1))
    assert row.over_control == pytest.approx(1.2)
    assert (row.least_ns, row.most_ns) == (1200, 3110)
    assert proof_tables.cells_of(row)[5] == "1.200 (1.100 … 1.400)"
    assert any("of several rounds" in note for note in proof_tables.notes(found))
    assert dict(proof_tables.summary(found))["bits"].startswith("8 of 9 runs")  # stock of later rounds is judged too
    found["cells"][-1] |= {"parameters": "other"}
    assert by_name(found)["sentinel"].same_bits is False
    del found["cells"][-2]
    assert by_name(found)["sentinel"].ratios == pytest.approx((1.2, 1.4))  # a round without its control has none
    lost = {"workload": "gpt", "kind": "policy", "placement": "sentinel", "prediction": None, "round": 2}
    found["cells"][-3] = {**lost, "failed": "ended by signal 9"}
    assert "gpt, sentinel: failed: ended by signal 9" in proof_tables.notes(found)


def test_bits_that_differ_are_found_and_those_of_the_reference_are_not_judged() -> None:
    found = proof()
    assert by_name(found)["sentinel"].same_bits is True
    assert by_name(found)["stock"].same_bits is None
    assert by_name(found)["lru"].same_bits is False
    assert proof_tables.bits_differ(found)
    assert "DIFFER" in proof_tables.text(found)
    assert dict(proof_tables.summary(found))["bits"].startswith("2 of 3 runs")


def test_a_cell_that_failed_is_one_and_one_that_was_refused_is_a_result() -> None:
    assert proof_tables.failures(proof()) == ["gpt, file: failed: ended by signal 9"]
    assert by_name(proof())["capuchin"].said == "refused: no room"


def test_a_busy_host_tells_no_ratio() -> None:
    found = proof()
    found["cells"][2]["busy_share"] = 0.4
    ours = by_name(found)["sentinel"]
    assert (ours.over_stock, ours.over_control, ours.error) == (None, None, None)
    said = [note for note in proof_tables.notes(found) if "busy in 1 of 4 runs" in note and "40%" in note]
    assert "the training thread waited" in said[0]  # as an object of before tells it
    found["cells"][2]["judged_by"] = "others"
    assert any("runs: others had the processors, for up to 40%" in note for note in proof_tables.notes(found))


def test_what_a_run_waited_for_its_own_threads_costs_no_ratio() -> None:
    found = proof()
    quiet = by_name(proof())["sentinel"]
    found["cells"][2] |= {"busy_share": 0.02, "judged_by": "others", "waited_share": 0.4}
    ours = by_name(found)["sentinel"]
    assert quiet.over_control is not None
    assert (ours.over_stock, ours.over_control) == (quiet.over_stock, quiet.over_control)
    notes = proof_tables.notes(found)
    assert any("in 1 of 4 runs the training thread waited" in note and "up to 40%" in note for note in notes)
    assert not any("busy" in note for note in notes)


def linked(*shares: float) -> list[dict[str, Any]]:
    """What this host copied of 3 GB/s, in shares, over a link each."""
    ends = {"source": "fast", "target": "slow", "asked_bytes_per_s": 3 * 10**9}
    return [{**ends, "copied_bytes_per_s": round(share * 3e9), "kept_up": share > 0.9} for share in shares]


def test_how_far_runs_were_below_emulated_links_is_one_sentence() -> None:
    found = proof()
    for told, shares in zip(found["cells"], ((), (0.95, 1.0), (0.6, 0.3), (0.5,)), strict=False):
        told["links"] = linked(*shares)
    said = [note for note in proof_tables.notes(found) if "emulated link" in note]
    assert len(said) == 1
    assert said[0].startswith("in 2 of the 3 runs that moved enough to tell")
    assert "reached 30% to 95% of its rate, 50% in the median" in said[0]
    assert said[0] in proof_page(found)
    found["emulated_machine"] = True
    assert not any("emulated link" in note for note in proof_tables.notes(found))


def test_of_links_that_kept_up_nothing_is_said() -> None:
    found = proof()
    found["cells"][2]["links"] = linked(0.93, 1.0)
    assert not any("emulated link" in note for note in proof_tables.notes(found))


def test_an_emulated_machine_tells_no_time() -> None:
    found = proof(emulated_machine=True)
    assert all(row.step_ns is None and row.over_control is None for row in proof_rows.rows(found))
    assert by_name(found)["sentinel"].same_bits is True
    assert " ms" not in proof_tables.text(found)


def test_a_plan_that_did_not_match_is_not_held_against_its_prediction() -> None:
    found = proof()
    found["cells"][2] |= {"as_planned": False, "notes": ["the saved plan does not match this step"]}
    ours = by_name(found)["sentinel"]
    assert ours.predicted is None
    assert "does not match" in ours.said


def test_placements_of_the_kernel_are_a_ratio_to_all_fast_in_the_same_comparison() -> None:
    def row(name: str, step_ns: int, **more: Any) -> dict[str, Any]:
        told = {"skipped": "", "unwatched_steps_ns": [9, step_ns], "measured_steps": 2, "served_share": 0.4}
        return {"workload": "gpt", "row": {"name": name, **told, "same_losses": True, "same_parameters": True, **more}}

    found = proof(
        kernel_placements=[
            row("all-fast", 100),
            row("kernel-tiering", 209),
            row("interleave", 1, skipped="no right"),
            row("first-touch", 120, same_parameters=False),
        ]
    )
    rows = {each.placement: each for each in proof_rows.rows(found) if each.kind == "kernel"}
    assert rows["kernel-tiering"].over_control == pytest.approx(109 / 54.5)
    assert rows["interleave"].said == "skipped: no right"
    assert rows["all-fast"].same_bits is None, "it is the reference itself"
    assert rows["first-touch"].same_bits is False


@pytest.mark.parametrize("busy", ["all-fast", "interleave"])
def test_a_host_that_was_busy_while_placements_were_compared_tells_no_ratio(busy: str) -> None:
    def row(name: str) -> dict[str, Any]:
        told = {"skipped": "", "unwatched_steps_ns": [9], "measured_steps": 2, "served_share": 0.4}
        told |= {"busy_share": 0.5 if name == busy else None, "same_losses": True, "same_parameters": True}
        return {"workload": "gpt", "row": {"name": name, **told}}

    found = proof(kernel_placements=[row("all-fast"), row("interleave"), row("first-touch")])
    rows = {each.placement: each for each in proof_rows.rows(found) if each.kind == "kernel"}
    assert rows["interleave"].step_ns == 9
    assert rows["interleave"].over_control is None
    assert (rows["first-touch"].over_control is None) == (busy == "all-fast")
    assert any("busy in 1 of 5 runs" in note and "50%" in note for note in proof_tables.notes(found))


def test_the_page_and_the_text_say_what_was_injected_what_was_not_run_and_what_is_missing() -> None:
    found = proof(partial="it was interrupted")
    for told in (proof_page(found), proof_tables.text(found)):
        assert "injected delays" in told
        assert "not run: gpt.policy.static" in told
        assert "partial" in told
        assert "two nodes" in told
    row = proof_tables.table_row(found)
    assert "**injected delays**" in row
    assert row.count("|") == len(TABLE_HEADS) + 1


def compared(workload: str, name: str, step_ns: int, **more: Any) -> dict[str, Any]:
    told = {"skipped": "", "unwatched_steps_ns": [step_ns], "measured_steps": 1, "served_share": 0.4}
    return {"workload": workload, "row": {"name": name, **told, "same_losses": True, "same_parameters": True, **more}}


def test_the_row_of_the_table_has_ours_beside_the_kernel_over_the_same_control_and_of_how_many() -> None:
    steps = {"all-fast": 100, "sentinel": 120, "kernel-tiering": 150}
    placed = [compared(name, placement, step) for name in ("gpt", "lstm") for placement, step in steps.items()]
    placed.append(compared("gpt", "interleave", 1, skipped="no right"))
    found = proof(kernel_placements=placed, settings={**SETTINGS, "workloads": ["gpt", "lstm"]})
    found["cells"].append({"workload": "gpt", "kind": "kernel", "placement": "kernel", "placements": 4})
    row = [cell.strip() for cell in proof_tables.table_row(found).strip("| ").split("|")]
    told = dict(zip(TABLE_HEADS, row, strict=True))
    assert told["ours over all-fast"] == "1.200 (of 1)"
    assert told["ours (compared)"] == "1.200 (of 2)"
    assert told["kernel's tiering (compared)"] == "1.500 (of 2)"
    assert told["best that moves nothing"] == "-"
    # Four cells without those that failed or were refused, and six placements without the one that was skipped.
    assert told["when, cells"] == "2026-01-01, 10 run, 1 refused, 1 not"


def test_the_page_has_the_columns_of_the_row() -> None:
    page = (Path(__file__).parents[2] / "docs" / "real-hardware.md").read_text()
    assert f"| {' | '.join(TABLE_HEADS)} |\n" in page


def test_every_name_in_the_object_is_in_its_contents() -> None:
    value = {"a": {"b": [{"c": 1}, {"c": 2, "d": []}]}, "not_run": {"x.y": "why"}, "e": None}
    assert proof_tables.contents(value) == ["a.b[].c", "a.b[].d", "not_run.*", "e"]


def in_folder(path: Path, cell_prediction: str | None = None) -> ProofFolder:
    folder = ProofFolder.begin(path, SETTINGS)
    told = {"workload": "gpt", "written": "2026-01-01T00:00:00Z", "of": {"sentinel": {"ratio": 1.1}}}
    digest = digest_of(told)
    folder.save("host", {"kernel": "6.12", "note": f"made in {path}"})
    folder.save("predictions/gpt", {**told, "digest": digest})
    folder.save("cells/gpt.policy.sentinel", cell("policy", "sentinel", 5, prediction=cell_prediction or digest))
    return folder


def test_the_object_has_what_the_folder_has_and_no_path(tmp_path: Path) -> None:
    with in_folder(tmp_path / "here") as folder:
        found = document(folder, SETTINGS, not_run={}, put_back=[], partial="")
    assert found["cells"][0]["placement"] == "sentinel"
    assert str(tmp_path) not in json.dumps(found)
    assert "predictions.*.digest" in found["contents"]


def test_of_a_path_below_the_home_directory_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/lovelace")
    why = f"cannot open /home/lovelace/clients/acme/x.py, see {tmp_path}/here/work/logs/a.log"
    with in_folder(tmp_path / "here") as folder:
        found = document(folder, SETTINGS, not_run={"gpt.policy.lru": why}, put_back=[], partial="")
    assert found["not_run"] == {"gpt.policy.lru": "cannot open <path>, see <proof>/work/logs/a.log"}


def test_a_prediction_that_was_written_anew_is_refused(tmp_path: Path) -> None:
    with in_folder(tmp_path, cell_prediction="another") as folder, pytest.raises(PredictionChanged, match="again"):
        document(folder, SETTINGS, not_run={}, put_back=[], partial="")


def test_a_prediction_that_was_edited_is_refused(tmp_path: Path) -> None:
    with in_folder(tmp_path) as folder:
        told = folder.load("predictions/gpt")
        told["of"]["sentinel"]["ratio"] = 1.2
        folder.save("predictions/gpt", told)
        with pytest.raises(PredictionChanged, match="digest"):
            document(folder, SETTINGS, not_run={}, put_back=[], partial="")


def predicted_and_ran(folder: ProofFolder, prediction: int, run: int) -> None:
    """With these numbers, and a clock that was set back between."""
    told = {"workload": "gpt", "number": prediction, "written": "2026-01-01T09:00:00Z", "of": {}}
    folder.save("predictions/gpt", {**told, "digest": digest_of(told)})
    ran = cell("policy", "sentinel", 5, prediction=digest_of(told), number=run)
    folder.save("cells/gpt.policy.sentinel", ran)


def test_a_clock_that_was_set_back_is_said_and_refuses_nothing(tmp_path: Path) -> None:
    with in_folder(tmp_path) as folder:
        folder.save("settings", {**folder.load("settings"), "began": "2999-01-01T00:00:00Z"})
        predicted_and_ran(folder, 1, 2)
        found = document(folder, SETTINGS, not_run={}, put_back=[], partial="")
    assert found["took_s"] is None
    assert any("the clock was set back" in note for note in proof_tables.notes(found))
    assert not any("the clock was set back" in note for note in proof_tables.notes(proof()))


def test_cells_are_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    with in_folder(tmp_path) as folder:
        predicted_and_ran(folder, 1, 3)
        folder.save("cells/gpt.policy.lru", cell("policy", "lru", 5, number=2))
        found = document(folder, SETTINGS, not_run={}, put_back=[], partial="")
    assert [each["placement"] for each in found["cells"]] == ["lru", "sentinel"]


def test_numbers_go_on_when_a_proof_does(tmp_path: Path) -> None:
    with ProofFolder.begin(tmp_path, SETTINGS) as folder:
        assert [folder.next_number(), folder.next_number()] == [1, 2]
    with ProofFolder.resume(tmp_path, SETTINGS) as folder:
        assert folder.next_number() == 3


def test_a_prediction_that_is_later_than_the_run_is_refused(tmp_path: Path) -> None:
    with in_folder(tmp_path) as folder:
        predicted_and_ran(folder, 2, 1)
        with pytest.raises(PredictionChanged, match="later"):
            document(folder, SETTINGS, not_run={}, put_back=[], partial="")
