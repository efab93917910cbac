"""One table of policies, whose modules are imported when asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sentinel.cli import common
from sentinel.core.errors import UsageError
from sentinel.planner import POLICIES, check_policies, load_policy
from sentinel.planner.sweep import DEFAULT_POLICIES

_IMPORTED = (
    "watched = {'numpy', 'highspy', 'sentinel.planner.moving_rivals'}; print(sorted(watched & set(sys.modules)))"
)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_name_leads_to_the_policy_of_that_name(name):
    assert load_policy(name).name == name


def test_a_wrong_name_is_answered_with_the_known_ones():
    with pytest.raises(UsageError, match=r"there is no policy 'guess'.*sentinel-2021"):
        load_policy("guess")
    with pytest.raises(UsageError, match="guess"):
        check_policies(["sentinel", "guess"])


def test_help_and_comparison_read_the_table():
    assert next(iter(POLICIES)) == "sentinel"
    assert common.POLICIES.replace(" (default)", "").split(", ") == list(POLICIES)
    assert set(POLICIES) - set(DEFAULT_POLICIES) == {"autotm", "all-fast"}


@pytest.mark.parametrize(
    ("program", "imported"),
    [
        ("from sentinel.planner import POLICIES, check_policies; check_policies(POLICIES)", "[]"),
        ("from sentinel.planner import plan, load_policy; load_policy('sentinel')", "['highspy', 'numpy']"),
        (
            "from sentinel.planner import plan, load_policy; load_policy('lru')",
            "['numpy', 'sentinel.planner.moving_rivals']",
        ),
    ],
)
def test_only_what_is_asked_for_is_imported(program, imported):
    text = f"import sys; {program}; {_IMPORTED}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=600)
    assert (done.stdout.strip(), done.stderr) == (imported, "")
