"""Sizes and times are read and printed in binary units, and nonsense is refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.core.errors import UsageError
from sentinel.core.sizes import format_bytes
from sentinel.core.units import format_ns, page_ceil, parse_budget, parse_bytes, parse_fast


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        (4096, 4096),
        ("4096", 4096),
        ("8GiB", 8 << 30),
        (" 1.5 MiB ", 3 << 19),
        ("7kib", 7168),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes_are_read(text: str | int, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", -1, "1.2.3", "8 GB", "8XB", "nan", "1e9", "20%", True, 0.2, "0.2", "1.5 B"]
)
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="not an amount of memory"):
        parse_bytes(text)


@pytest.mark.parametrize(
    "text",
    [10**19, 10**5000, "9" * 400, "9" * 400 + "GiB", "8388608TiB"],
    ids=["int", "long_int", "long", "no_float", "tib"],
)
def test_more_than_any_machine_has_is_refused(text: str | int) -> None:
    for parsed in (parse_bytes, parse_fast):
        with pytest.raises(UsageError, match=r"more than 1048576.00 TiB is not an amount of memory"):
            parsed(text)
    assert parse_bytes("1048576TiB") == 1 << 60


def test_a_share_is_a_number_and_never_more_than_any_machine_has() -> None:
    with pytest.raises(UsageError, match="not a share of memory"):
        parse_budget("9" * 400 + "%", 4096)
    assert parse_budget("9" * 300 + "%", 1 << 30) == 1 << 60


@pytest.mark.parametrize("text", ["8GB", "8 gb", "8G", "8Gi"])
def test_a_decimal_or_short_unit_is_answered_with_the_binary_one(text: str) -> None:
    with pytest.raises(UsageError, match=r"GiB\?"):
        parse_bytes(text)


@pytest.mark.parametrize("text", [20, "20", "4095", 1, "0.5KiB"])
def test_a_budget_of_less_than_a_page_was_to_be_a_share(text: str | int) -> None:
    with pytest.raises(UsageError, match='less than a page; write "20%"'):
        parse_budget(text, 1 << 30)
    assert parse_budget(0, 1 << 30) == 0
    assert parse_budget(4096, 1 << 30) == 4096


@pytest.mark.parametrize(
    ("text", "nbytes"), [("20%", 200 * 4096), ("100%", 1000 * 4096), ("0%", 0), ("33.37%", 333 * 4096)]
)
def test_a_share_is_rounded_down_to_pages_so_that_it_is_never_exceeded(text: str, nbytes: int) -> None:
    assert parse_budget(text, 1000 * 4096) == nbytes


def test_a_budget_in_bytes_ignores_the_footprint() -> None:
    assert parse_budget("1MiB", 17) == parse_budget(1 << 20, 17) == 1 << 20


@pytest.mark.parametrize("text", ["%", "-5%", "x%", "5%%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_budget(text, 4096)


def test_printing_picks_the_largest_unit_of_at_least_one() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 3 << 29)] == ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]
    assert [format_ns(n) for n in (0, 999, 1000, 1.62e9)] == ["0 ns", "999 ns", "1.00 µs", "1.62 s"]


def test_pages_round_up() -> None:
    assert [page_ceil(n) for n in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
