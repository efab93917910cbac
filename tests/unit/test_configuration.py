"""Settings: environment before file, unknown ones refused with the nearest, and what shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel import cli
from sentinel.cli import doctor, run
from sentinel.core.errors import FormatError, UsageError
from sentinel.runtime import RUNTIME
from sentinel.system.configuration import NAMES, Setting, configuration


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RUNTIME, "configured", None)
    for name in NAMES:
        monkeypatch.delenv(f"SENTINEL_{name.upper()}", raising=False)
    return tmp_path


def test_without_any_there_are_none(here: Path) -> None:
    assert configuration({}) == {}
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n[tool.ruff]\nfast = 3")
    (here / "sentinel.toml").write_text("")
    assert configuration({"SENTINEL_FAST": ""}) == {}  # as a shell gives what it was told to unset
    assert doctor.setting_lines() == ["settings: none"]
    assert doctor.settings_as_json() == {}


def test_the_environment_wins_over_the_file(here: Path) -> None:
    (here / "pyproject.toml").write_text('[tool.sentinel]\nfast = 8192\nslow = "numa:1"\nrate_limit = "1GiB/s"')
    assert configuration({"SENTINEL_SLOW": "emulated:cxl-worst", "PATH": "/bin"}) == {
        "fast": Setting(8192, "pyproject.toml [tool.sentinel]"),
        "slow": Setting("emulated:cxl-worst", "SENTINEL_SLOW"),
        "rate_limit": Setting("1GiB/s", "pyproject.toml [tool.sentinel]"),
    }
    (here / "sentinel.toml").write_text('report = "r.html"')
    assert configuration({}) == {"report": Setting("r.html", "sentinel.toml")}  # and not both


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fats = 3", "fats: is not a setting; fast is the nearest"),
        ("fast = 0.2", 'value of type float; write "20%"'),
        ("fast = true", "value of type bool"),
        ("slow = 1", "value of type int; write a text"),
        ("[fast]\nx = 1", "value of type dict"),
        ("fast", "settings of Sentinel: cannot be read"),
        ("\xff", "settings of Sentinel: cannot be read"),
    ],
)
def test_a_file_with_an_error_is_refused(here: Path, text: str, told: str) -> None:
    (here / "sentinel.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError) as refused:
        configuration({})
    assert told in str(refused.value)
    assert str(refused.value).startswith("sentinel.toml: ")
    assert doctor.setting_lines() == [f"settings: no session begins: {refused.value}"]
    assert doctor.settings_as_json() == {"refused": str(refused.value)}


def test_a_misspelt_variable_is_refused_and_a_strangers_is_not() -> None:
    for misspelt in ("FASST", "FSAT"):
        with pytest.raises(UsageError, match=f"SENTINEL_{misspelt} is not a setting; write SENTINEL_FAST, or unset it"):
            configuration({f"SENTINEL_{misspelt}": "20%"})
    strangers = ("PORT", "SERVICE_HOST", "PORT_26379_TCP", "UNTESTED_TORCH", "ACCEPT", "NUMA_VM", "HOME")
    assert configuration({f"SENTINEL_{name}": "x" for name in strangers}) == {}


def test_doctor_shows_each_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_FAST", "20%")
    assert doctor.setting_lines() == ["settings, unless an argument overrides them:", "  fast  20%  SENTINEL_FAST"]
    assert doctor.settings_as_json() == {"fast": {"value": "20%", "source": "SENTINEL_FAST"}}


def test_a_run_takes_its_own_options_first_and_files_from_where_it_began(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "sentinel.toml").write_text('report = "r.html"\nplan = "p.json"\nmachine = "cxl-m5"')
    monkeypatch.setattr(RUNTIME, "configured", run.settings_wherever_the_script_goes())
    given = cli.parsed(["run", "--report", "mine.html", "--dry-run", "train.py"])
    assert run.said(given, "report") == "mine.html"
    assert run.said(given, "plan") == str(here / "p.json")
    assert run.said(given, "machine") == "cxl-m5"
    assert run.said(given, "slow") is None
    with pytest.raises(UsageError, match="--dry-run with --plan"):
        run.require_a_watched_step(given)


def test_a_file_of_another_tool_that_is_no_toml_is_passed_over(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "pyproject.toml").write_text("[tool.ruff\nline-length = 120")
    assert configuration({"SENTINEL_FAST": "20%"}) == {"fast": Setting("20%", "SENTINEL_FAST")}
    assert capsys.readouterr().err.startswith("sentinel: pyproject.toml is not valid TOML")


@pytest.mark.parametrize("heading", ["[tool.sentinel]", '[ tool . "sentinel" ]', "tool.sentinel.fast = 3"])
def test_a_damaged_file_that_has_our_table_is_refused(heading: str, here: Path) -> None:
    (here / "pyproject.toml").write_text(f"{heading}\nslow = [")
    with pytest.raises(FormatError, match=r"pyproject\.toml"):
        configuration({})
