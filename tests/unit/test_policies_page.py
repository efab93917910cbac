"""The table of policies from hand-made cells: means over the paper's families only, and no lost cell is hidden."""

from __future__ import annotations

import json

import pytest

from benchmarks import policies, policies_page
from benchmarks.policies import summary
from tests.builders import MIB, make_machine, make_profile, param


def cell(trace, sentinel, rival, fast="20%"):
    return {
        "trace": trace,
        "machine": "cxl-m5",
        "fast": fast,
        "loose": "",
        "plan_cpu_s": {"sentinel": 1.5 if trace == "vit" else 0.5},
        "fraction": {"sentinel": sentinel * 0.9, "lru": rival * 0.9},
        "of_bound": {"sentinel": sentinel, "lru": rival},
    }


CELLS = [cell("resnet32", 0.9, 0.5), cell("lstm", 1.0, 0.7), cell("gpt2", 0.8, 0.802), cell("vit", 0.8, 0.81)]


def test_means_are_of_the_papers_families_and_the_worst_of_all():
    told = summary(CELLS)
    assert told["mean_of_bound"] == {"cxl-m5": {"sentinel": {"20%": 0.95}, "lru": {"20%": 0.6}}}
    assert told["mean_fraction"]["cxl-m5"]["lru"]["20%"] == pytest.approx(0.54)
    assert told["worst_of_bound"]["cxl-m5"]["sentinel"]["20%"] == {"share": 0.8, "trace": "gpt2"}
    assert told["cells"] == CELLS


def test_a_rival_that_is_more_than_half_a_percent_faster_is_told():
    behind = summary(CELLS)["sentinel_behind"]
    assert behind == [{"trace": "vit", "machine": "cxl-m5", "fast": "20%", "rival": "lru", "by": 1.0125}]


def test_plans_that_a_worse_machine_spoils_are_told_and_so_is_the_way_to_the_exchange_bound():
    def known(trace, worse, static, fraction=0.9, half=90):
        speeds = {"sentinel": fraction, "best-static": 0.8, "lru": 0.5}
        return {
            **cell(trace, 0.9, 0.5),
            "bound_ns": 100,
            "exchange_ns": 90,
            "fraction": speeds,
            "worse_ns": {"sentinel": worse, "best-static": static},
            "half_links_ns": {"sentinel": half, "best-static": static},
            "held_in_mean": {"sentinel": 0.75},
        }

    cells = [known("resnet32", 104, 100), known("lstm", 102, 100), known("gpt2", 90, 100, fraction=0.79)]
    told = summary([*cells, known("vit", 90, 100, half=107)])
    spoilt = [(row["trace"], row["worse"], row["described"]) for row in told["spoilt_by_a_worse_machine"]]
    assert spoilt == [("resnet32", 1.04, 0.88889), ("gpt2", 0.9, 1.01266), ("vit", 0.9, 0.88889)]
    assert told["spoilt_by_a_worse_machine"][-1]["half_links"] == 1.07
    told = summary(cells)
    assert told["mean_of_exchange_bound"]["cxl-m5"]["sentinel"]["20%"] == 0.81
    told |= {"when": "2026-01-02", "versions": {"numpy": "2.0", "python": "3.11"}}
    page = "\n".join(policies_page._page(told))
    assert "| resnet32 | 1 | 10.00% | 10.0% (cxl-m5, 20%) |" in page
    assert "in 2 of 3 cells more than 3 %" in page
    assert "| resnet32 | cxl-m5 | 20% | 1.040 | 0.900 | 0.889 |" in page
    assert "Of the exchange bound `sentinel` has 0.810 with 20%." in page
    assert "| sentinel | 0.750 |" in page
    none = "\n".join(policies_page._page({**told, "cells": cells[1:2], "spoilt_by_a_worse_machine": []}))
    assert "`sentinel` is nowhere more than 3 % slower" in none


def page_of(cells):
    told = {**summary(cells), "when": "2026-01-02", "versions": {"numpy": "2.0", "python": "3.11"}}
    return " ".join("\n".join(policies_page._page(told)).split())


def test_the_goal_is_of_each_machine_and_amount_and_a_miss_is_told():
    near = [cell("resnet32", 0.992, 0.5), cell("resnet32", 0.991, 0.5, "60%"), cell("resnet32", 0.5, 0.4, "80%")]
    assert "with 20%, 60% fast: met; least 0.9910 (cxl-m5, 60%)." in page_of(near)
    far = {**cell("lstm", 0.985, 0.5), "machine": "cxl-m2"}
    assert "fast: **missed**; least 0.9850 (cxl-m2, 20%)." in page_of([*near, far])


def test_what_was_not_run_is_told(monkeypatch):
    monkeypatch.setattr(policies_page.traces, "NAMES", ("resnet32", "gpt2"))
    monkeypatch.setattr(policies_page, "MACHINES", ("cxl-m5",))
    both = [cell("resnet32", 0.9, 0.5), cell("gpt2", 0.9, 0.5), {**cell("resnet32", 0.9, 0.5), "machine": "numa-m5"}]
    assert "Not run, for time: gpt2 on numa-m5." in page_of(both)
    assert "Not run, for time: gpt2 on cxl-m5 with 60%." in page_of([*both[:2], cell("resnet32", 0.9, 0.5, "60%")])
    assert "Not run" not in page_of(both[:2])
    assert "Not run, for time: gpt2 on any." in page_of(both[:1])
    monkeypatch.setattr(policies_page, "MACHINES", ("cxl-m5", "numa-m5", "numa-m2"))
    assert "Not run, for time: any model on numa-m2; gpt2 on numa-m5." in page_of(both)


def test_every_policy_of_the_table_may_use_a_plan_for_less_fast_memory_again(monkeypatch):
    """With more than 8 MiB each policy is made to forget all that it knows."""
    profile = make_profile([param(f"w{k}", 4 * MIB, [k, 7 - k]) for k in range(4)], 8, layer_ns=1_000_000)
    made = policies.plan

    def forgetful(profile, machine, policy, **more):
        return made(profile, machine, policy if machine.fast.capacity_bytes <= 8 * MIB else "all-slow", **more)

    monkeypatch.setattr(policies, "plan", forgetful)
    asked = ("sentinel", "sentinel-2021", "autotm", "best-static", "all-fast")
    best, steps = {}, []
    for room in (8 * MIB, 12 * MIB):
        found = list(policies._plans(profile, make_machine(room), asked, best, None))
        assert [policy for policy, _, _ in found] == list(asked[:-1])
        steps.append({policy: (plan.predicted_step_ns, told["of_less"]) for policy, plan, told in found})
    for policy in asked[:-1]:
        assert steps[1][policy] == (steps[0][policy][0], True)
        assert not steps[0][policy][1]


def test_a_missed_goal_says_where_and_what_forgiving_costs():
    far = {**cell("lstm", 0.98, 0.5), "commit": "b", "unforgiving_of_bound": 0.99}
    page = page_of([{**cell("resnet32", 0.97, 0.5), "commit": "b"}, far])
    assert "| cxl-m5 | 20% | 0.9750 | resnet32 0.970 | 0.9800 |" in page  # (0.97 + 0.99) / 2


def test_cells_of_an_earlier_commit_are_kept_by_name_and_replaced_whole(tmp_path, monkeypatch):
    versions = {"numpy": "2.0", "python": "3.11"}
    told = {"when": "2026-01-02", "versions": versions}
    earlier = [cell("resnet32", 0.9, 0.95), cell("lstm", 0.9, 0.5)]
    again = {**cell("resnet32", 0.95, 0.5), "commit": "abc1234", "plans_of_less": ["lru"]}
    (tmp_path / "policies.json").write_text(json.dumps({**told, "cells": earlier}, indent=1))
    (tmp_path / "run").write_text("a table\n" + json.dumps({**told, "cells": [again]}))
    monkeypatch.setattr(policies_page, "DOCS", tmp_path)
    policies_page.main([str(tmp_path / "policies.json"), str(tmp_path / "run")])
    assert json.loads((tmp_path / "policies.json").read_text())["cells"] == [again, earlier[1]]
    page = " ".join((tmp_path / "policies.md").read_text().split())
    assert "of commit abc1234 those on cxl-m5 (resnet32 with 20%)" in page
    assert "of commit 46bf8fa those on cxl-m5 (lstm with 20%)" in page
    assert "used again, of all (1 times), but not in cells of 46bf8fa" in page


def test_runs_make_one_page(tmp_path, monkeypatch):
    versions = {"numpy": "2.0", "python": "3.11"}
    for name, cells in (("a", CELLS[:2]), ("b", CELLS[2:])):
        told = {"when": "2026-01-02", "versions": versions, "cells": cells}
        (tmp_path / name).write_text("a table\n" + json.dumps(told))
    monkeypatch.setattr(policies_page, "DOCS", tmp_path)
    policies_page.main([str(tmp_path / "a"), str(tmp_path / "b")])
    page = (tmp_path / "policies.md").read_text()
    assert "| vit | cxl-m5 | 20% | lru | 1.2% |" in page
    assert "takes 0.5 s of processor time (median), at most 1.5 s (vit)" in page
    assert "No bound is loose." in page
    assert "| sentinel | 0.950 | 0.800 (gpt2) | 0.855 |" in page
    assert json.loads((tmp_path / "policies.json").read_text())["cells"] == CELLS


@pytest.mark.parametrize(
    "asked",
    [("--traces", "resnet"), ("--machines", "cxl-m5,cxl"), ("--policies", "sentinel,belady"), ("--fast", "20%,x")],
)
def test_what_does_not_exist_is_refused_before_anything_is_computed(asked, capsys):
    with pytest.raises(SystemExit) as ended:
        policies.main([*asked, "--json"])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert repr(asked[1].split(",")[-1]) in told.err
    assert not told.out


GAPS = (("resnet32", 0.01), ("lstm", 0.03))


def test_the_page_says_when_searches_end_and_how_far_from_the_best():
    assert "whose search ends after 50 nodes (given 60 s" in page_of(CELLS)
    gaps = [{**cell(trace, 0.9, 0.5), "search": {"autotm": {"gap": gap, "limit_s": 60.0}}} for trace, gap in GAPS]
    told = "after 60 s, with a gap to the best of its program of 2.0% in the mean and at most 3.0% (lstm on cxl-m5"
    assert told in page_of([*gaps, CELLS[2]])
    assert "50 nodes or 60 s" in page_of([*gaps, {**CELLS[2], "search": {"autotm": {"gap": 0.0, "limit_s": None}}}])
