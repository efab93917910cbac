"""Rules with their sentences: the first broken one is told, and of notes those that hold."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.core.errors import UsageError
from sentinel.core.rules import first_broken, holding, require


def test_the_first_broken_rule_is_told() -> None:
    rows = np.array([1, 2])
    assert first_broken((False, "a"), ((rows > 1).any(), "b"), (True, "c")) == "b"
    assert first_broken((np.False_, "a"), ((), "b"), (0, "c")) is None
    assert first_broken() is None


def test_a_broken_rule_is_raised_with_its_remedy() -> None:
    require((False, "wrong", "do that"), (np.False_, "worse", "do this"))
    with pytest.raises(UsageError, match=r"^worse; do this$"):
        require((False, "wrong", "do that"), ([0], "worse", "do this"), (True, "worst", "give up"))


def test_the_notes_that_hold_are_told_in_their_order() -> None:
    assert holding((2, "two"), (0, "none"), ("", "empty"), (True, "true")) == ["two", "true"]
