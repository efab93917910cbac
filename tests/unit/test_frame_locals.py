"""Local variables of running functions are read, and no dict that the script got from `locals()` changes."""

from __future__ import annotations

import builtins
import gc
import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.migration import frame_locals

BY_DICT = sys.version_info < (3, 12)
"""What may have given its dict away is not read at all."""


def read_callers() -> dict[str, Any] | None:
    frame = sys._getframe(1)
    assert frame is not None
    try:
        return frame_locals.of(frame)
    finally:
        del frame


def of_caller() -> Any:
    return sys._getframe(1).f_locals


def kept_locals(width: int) -> tuple[dict[str, Any], Any]:
    config = locals()
    model = [width]
    return config, (read_callers(), model)


def kept_by_builtins(width: int) -> tuple[dict[str, Any], Any]:
    config = builtins.locals()
    model = [width]
    return config, (read_callers(), model)


def kept_vars(width: int) -> tuple[dict[str, Any], Any]:
    config = vars()
    model = [width]
    return config, (read_callers(), model)


def kept_by_eval(width: int) -> tuple[dict[str, Any], Any]:
    config = eval("locals()")
    model = [width]
    return config, (read_callers(), model)


def kept_by_a_frame(width: int) -> tuple[dict[str, Any], Any]:
    config = sys._getframe().f_locals
    model = [width]
    return config, (read_callers(), model)


def kept_by_a_function(width: int) -> tuple[dict[str, Any], Any]:
    config = of_caller()
    model = [width]
    return config, (read_callers(), model)


@pytest.mark.parametrize(
    "keeping", [kept_locals, kept_by_builtins, kept_vars, kept_by_eval, kept_by_a_frame, kept_by_a_function]
)
def test_a_dict_that_the_script_keeps_stays_as_it_was(keeping: Callable[[int], Any]) -> None:
    config, (read, model) = keeping(64)
    if type(config) is dict:  # else a view, as of 3.13, which is to show what comes later
        assert config == {"width": 64}
    if BY_DICT:
        assert read is None
    else:
        assert read is not None
        assert (read["model"] is model, read["width"]) == (True, 64)


def test_a_name_that_was_made_by_exec_stays() -> None:
    def runs() -> Any:
        exec("made = 1")
        read_callers()
        return eval("made", {}, locals()) if sys.version_info < (3, 13) else 1

    assert runs() == 1


def test_variables_are_read_as_they_are_bound() -> None:
    in_a_cell = [1]

    def reading(given: int, unbound: Any = None) -> dict[str, Any] | None:
        before = 2
        del unbound
        within = [x + 0 for x in (before, given)]
        return read_callers() if in_a_cell and within else None

    assert reading(1) == {"given": 1, "before": 2, "within": [2, 1], "in_a_cell": in_a_cell}


def test_a_method_named_eval_is_not_pythons() -> None:
    def evaluates(model: Any) -> dict[str, Any] | None:
        model.eval()
        return read_callers()

    read = evaluates(SimpleNamespace(eval=lambda: None))
    assert read is not None
    assert list(read) == ["model"]


def test_nothing_that_was_read_stays_alive() -> None:
    class Big:
        pass

    def reading() -> weakref.ref[Big]:
        big = Big()
        assert read_callers() is not None
        seen = weakref.ref(big)
        del big
        gc.collect()
        assert seen() is None
        return seen

    reading()


def test_names_of_a_module_are_its_dict() -> None:
    found: dict[str, Any] = {"read": frame_locals.of}
    exec(compile("import sys\nname = 5\nresult = read(sys._getframe())", "module", "exec"), found)
    assert found["result"]["name"] == 5
