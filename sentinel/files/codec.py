"""Frozen dataclasses to JSON values and back, driven by their annotations and strict both ways.

Known annotations: int (64 bits), float (finite), str, bool, Literal, X | None, tuple[X, ...], tuple[X, Y],
dict[str, X], Any (a JSON value), and dataclasses of these. A field with a default may be missing from a
file; a field that is unknown, of another type or outside its range is a Misfit that names it.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from sentinel.core.errors import SentinelError, UsageError

MAX_DEPTH = 32
"""Of a free-form JSON value. Deeper nesting serves nothing but exhausting a stack."""

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]


class Misfit(Exception):
    """A value is not what its field wants. `field` grows on the way out, as each level prepends its name."""

    def __init__(self, rule: str, field: str = "") -> None:
        self.rule, self.field = rule, field
        super().__init__(rule)

    def within(self, outer: str) -> Misfit:
        """The same, one level further out."""
        joint = "" if not self.field or self.field.startswith("[") else "."
        return Misfit(self.rule, f"{outer}{joint}{self.field}")


def encode(value: Any, leave_out: Iterable[str] = ()) -> dict[str, Any]:
    """The JSON object of a dataclass instance, without the fields named in `leave_out`."""
    found = {}
    for name, (put, _, sparse) in _codecs(cast(Hashable, type(value))).items():
        if name not in leave_out and not (sparse and not getattr(value, name)):
            found[name] = put(getattr(value, name))
    return found


def decode(cls: type[Any], value: Any, given: dict[str, Any] | None = None) -> Any:
    """An instance of dataclass `cls` from a JSON value. Fields in `given` come from there and not from the file."""
    ready = given or {}
    if type(value) is not dict:
        raise Misfit(f"is {_said(value)}, not an object")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    codecs = _codecs(cast(Hashable, cls))  # what functools.cache takes
    found = dict(ready)
    for name, raw in value.items():
        if name not in fields or name in ready:
            known = ", ".join(sorted(set(fields) - set(ready)))
            raise Misfit(f"is not known; the fields are {known}", name[:80])
        try:
            found[name] = codecs[name][1](raw)
        except Misfit as error:
            raise error.within(name) from None
    if len(found) < len(fields):
        for name, f in fields.items():
            if name not in found and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
                raise Misfit("is missing", name)
    try:
        return cls(**found)
    except SentinelError as error:  # the noun's own invariants
        raise Misfit(str(error)) from error


@cache
def _codecs(cls: Hashable) -> dict[str, tuple[Encode, Decode, bool]]:
    """The way out and the way in of each field of a dataclass, and whether it is left out while it is empty: then what
    was written before there was such a field keeps its digest."""
    hints = get_type_hints(cls)
    fields = dataclasses.fields(cast(Any, cls))
    return {f.name: (*_codec(hints[f.name]), bool(f.metadata.get("sparse"))) for f in fields}


def _codec(hint: Any) -> tuple[Encode, Decode]:
    inner = _optional(hint)
    if inner is not None:
        put, get = _codec(inner)
        return _unless_none(put), _unless_none(get)
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _put_str, _literal(args)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        put, get = _codec(args[0])
        return lambda value: [put(item) for item in value], _sequence(get)
    if origin is tuple:
        each = [_codec(arg) for arg in args]
        return (
            lambda value: [put(item) for (put, _), item in zip(each, value, strict=True)],
            _fixed([get for _, get in each]),
        )
    if origin is dict:
        put, get = _codec(args[1])
        return lambda value: {_put_str(key): put(item) for key, item in value.items()}, _mapping(get)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return encode, lambda value: decode(hint, value)
    return _put_json, _get_json


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _optional(hint: Any) -> Any:
    """X of `X | None`, else None."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = [arg for arg in get_args(hint) if arg is not type(None)]
        if len(inner) == 1 and len(get_args(hint)) == 2:
            return inner[0]
    return None


# --- out ---


def _put_int(value: Any) -> int:
    found = operator.index(value)
    if not -(1 << 63) <= found < 1 << 63:
        raise UsageError(f"{found} cannot be saved", "keep numbers within 64 bits")
    return found


def _put_str(value: Any) -> str:
    found = str(value)
    if not valid_unicode(found):
        raise UsageError(f"the text {found[:40]!r} cannot be saved", "use valid Unicode")
    return found


def _put_float(value: Any) -> float:
    found = float(value)
    if not math.isfinite(found):
        raise UsageError(f"{found} cannot be saved", "leave out what is not known")
    return found


def _put_json(value: Any, depth: int = 0) -> Any:
    """A JSON value of any shape; numpy scalars become Python's, tuples become lists."""
    if depth > MAX_DEPTH:
        raise UsageError(f"a value is nested deeper than {MAX_DEPTH}", "flatten it")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _put_str(value)
    if isinstance(value, dict):
        return {_put_str(key): _put_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_put_json(item, depth + 1) for item in value]
    if hasattr(value, "tolist"):  # numpy's, which this file need not import
        return _put_json(value.tolist(), depth)
    if isinstance(value, int):
        return _put_int(value)
    if isinstance(value, float):
        return _put_float(value)
    raise UsageError(f"a value of type {type(value).__name__} cannot be saved", "use JSON values only")


# --- in ---


def _get_int(value: Any) -> int:
    if type(value) is not int:
        raise Misfit(f"is {_said(value)}, not a whole number")
    if not -(1 << 63) <= value < 1 << 63:
        raise Misfit("does not fit in 64 bits")
    return value


def _get_float(value: Any) -> float:
    if type(value) is int and abs(value) < 1 << 63:
        return float(value)
    if type(value) is not float or not math.isfinite(value):
        raise Misfit(f"is {_said(value)}, not a finite number")
    return value


def _get_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise Misfit(f"is {_said(value)}, not true or false")
    return value


def _get_str(value: Any) -> str:
    if type(value) is not str:
        raise Misfit(f"is {_said(value)}, not a text")
    if not valid_unicode(value):
        raise Misfit("is not valid Unicode")
    return value


def _literal(allowed: tuple[Any, ...]) -> Decode:
    def get(value: Any) -> Any:
        if type(value) is not str or value not in allowed:
            raise Misfit(f"is {_said(value)}, not one of {', '.join(repr(a) for a in allowed)}")
        return value

    return get


def _sequence(each: Decode) -> Decode:
    def get(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise Misfit(f"is {_said(value)}, not a list")
        found = []
        for item in value:
            try:
                found.append(each(item))
            except Misfit as error:
                raise error.within(f"[{len(found)}]") from None
        return tuple(found)

    return get


def _fixed(each: list[Decode]) -> Decode:
    def get(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(each):
            raise Misfit(f"is {_said(value)}, not a list of {len(each)}")
        return tuple(one(item) for one, item in zip(each, value, strict=True))

    return get


def _mapping(each: Decode) -> Decode:
    def get(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Misfit(f"is {_said(value)}, not an object")
        found = {}
        for key, item in value.items():
            try:
                found[_get_str(key)] = each(item)
            except Misfit as error:
                raise error.within(key[:80]) from None
        return found

    return get


def _get_json(value: Any) -> Any:
    """A JSON value as it is, if every number in it is finite and fits, and it is not nested too deeply."""
    pending = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise Misfit(f"is nested deeper than {MAX_DEPTH}")
        if type(item) is dict:
            pending += [(_get_str(key), depth) for key in item]
            pending += [(inner, depth + 1) for inner in item.values()]
        elif type(item) is list:
            pending += [(inner, depth + 1) for inner in item]
        elif type(item) is int:
            _get_int(item)
        elif type(item) is float:
            _get_float(item)
        elif type(item) is str:
            _get_str(item)
    return value


def valid_unicode(text: str) -> bool:
    """False for half of a surrogate pair, which no output could show."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _said(value: Any) -> str:
    """A JSON value in a few words, however large it is."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 1 << 63 else "a huge number"
    return "null" if value is None else str(value).lower()


_PLAIN: dict[Any, tuple[Encode, Decode]] = {
    int: (_put_int, _get_int),
    float: (_put_float, _get_float),
    bool: (bool, _get_bool),
    str: (_put_str, _get_str),
}
