"""The reference of the public interface: what its pages refer to is there, and what is not is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.reference import broken, there


@pytest.mark.parametrize(
    ("markup", "said"),
    [
        ('<a href="b.html#x">b</a> <a href="#y">y</a> <a href="https://c.org/d">d</a>', []),
        ('<a href="c.html">c</a>', ["a.html: a link leads nowhere: c.html"]),
        ("<code>sentinel.files.load</code>, <code>sentinel.toml</code>, <code>sentinel run</code>", []),
        ("<code>sentinel.files.<b>lod</b>(path)</code>", ["a.html: there is no sentinel.files.lod"]),
    ],
)
def test_what_is_referred_to_and_is_not_there_is_found(markup: str, said: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(markup)
    (tmp_path / "b.html").write_text('<p id="x"></p>')
    assert list(broken(tmp_path)) == said


def test_names_are_modules_or_what_is_in_them() -> None:
    assert there("sentinel.core.units")
    assert there("sentinel.core.units.format_ns")
    assert not there("sentinel.core.unit.format_ns")
    assert not there("sentinel.core.units.format_ns.more")
