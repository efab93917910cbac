"""WebDataset shards: plain tar files in which neighbouring members of one key make a sample.

Only headers are read for the index: ustar, pax and GNU long names. A sample's bytes reach from the header of its first
member to the end of its last one, so that `members` finds the same members in them again.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sentinel.core.errors import FormatError
from sentinel.data.sources.source import Buffer, FileRanges, SourceFile
from sentinel.data.sources.stored_file import OpenedFile, opened

_BLOCK = 512
_NEAR = 8192
"""Bytes to the next header up to which headers are read many at a time: their members are read with them."""
_MOST_READ = 256 << 10
_MOST_EXTENDED = 1 << 20
"""Bytes of a long name or of pax records; no writer makes more."""
_ADLERS_MODULUS = 65521
_MOST_DIGITS = 20
_SPLIT = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)", re.S)
_ZEROS = bytes(_BLOCK)
_PACKED = {
    b"\x1f\x8b": "gunzip",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
}


class Member(NamedTuple):
    """A regular file in a tar: bytes [header, begin) describe it, [begin, begin + nbytes) are its content."""

    name: str
    header: int
    begin: int
    nbytes: int


class _Damaged(Exception):
    """What is wrong, without the name of the file."""


class TarShards:
    """A sample is a dict of its key and its members: `{"__key__": "000012", "jpg": b"...", "cls": b"..."}`."""

    kind = "tar"

    def __init__(self) -> None:
        self._extensions: frozenset[str] = frozenset()

    def scan(self, file: SourceFile) -> FileRanges:
        """Where the samples of one shard lie. Raises FormatError for what cannot be read sample by sample.

        Samples of all shards that one TarShards scans must have the same extensions.
        """
        try:
            return self._scan(file, _reader_of(opened(file.path), file.nbytes))
        except _Damaged as error:
            raise FormatError(file.path, "tar", str(error)) from None

    def _scan(self, file: SourceFile, read: Callable[[int, int], Buffer]) -> FileRanges:
        begins: list[int] = []
        ends: list[int] = []
        keys: set[str] = set()
        now, found = "", set[str]()
        for member in members(read, file.nbytes, whole=True):
            split = split_name(member.name)
            if split is None:
                continue
            key, extension = split
            if key != now:
                if now:
                    self._same_extensions(now, found)
                if key in keys:
                    raise _Damaged(f"the members of {key!r} do not follow one another; pack the shard sorted by name")
                keys.add(key)
                now, found = key, set()
                begins.append(member.header)
                ends.append(0)
            if extension in found:
                raise _Damaged(f"{key!r} has two members {extension!r}; remove one of them")
            found.add(extension)
            ends[-1] = member.begin + member.nbytes
        if not begins:
            raise _Damaged("holds no sample: no member's name has a key and an extension; check that it is a shard")
        self._same_extensions(now, found)
        return FileRanges.of(begins, ends)

    def _same_extensions(self, key: str, found: set[str]) -> None:
        if not self._extensions:
            self._extensions = frozenset(found)
        if found != self._extensions:
            missing, more = sorted(self._extensions - found), sorted(found - self._extensions)
            said = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(more)}, which the first one lacks"
            raise _Damaged(f"the sample {key!r} {said}; give shards whose samples have the same members")

    def decode(self, data: Buffer, path: str) -> dict[str, Any]:
        """The sample in its bytes. Raises FormatError where these are not what was indexed."""
        sample: dict[str, Any] = {}
        try:
            for member in members(lambda at, nbytes: data[at : at + nbytes], len(data), whole=False):
                split = split_name(member.name)
                if split is not None:
                    sample["__key__"] = split[0]
                    sample[split[1]] = bytes(data[member.begin : member.begin + member.nbytes])
        except _Damaged as error:
            raise FormatError(path, "tar", str(error)) from None
        if not sample:
            raise FormatError(path, "tar", "a sample is not where it was indexed; index the shard again")
        return sample


def split_name(name: str) -> tuple[str, str] | None:
    """(key, extension) as WebDataset splits names: at the first dot of the last part; None for what is no sample's."""
    matched = _SPLIT.fullmatch(name)
    if matched is None or (matched[1].startswith("__") and matched[1].endswith("__")):
        return None
    return matched[1], matched[2].lower()


def members(read: Callable[[int, int], Buffer], nbytes: int, *, whole: bool) -> Iterator[Member]:
    """The regular files in a tar of `nbytes`, in their order. `read(at, nbytes)` gives bytes of it.

    `whole`: it must end with a block of zeros; otherwise it is a part of one, from a header to the end of a member.
    """
    at, header, name, size = 0, -1, "", -1
    while at < nbytes:
        block = bytes(read(at, _BLOCK))
        if len(block) < _BLOCK:
            raise _Damaged(f"is cut short within a header, at byte {at}; copy it again")
        if block == _ZEROS:
            if header >= 0:
                raise _Damaged(f"a long name stands before no member, at byte {at}; pack it again")
            return
        _is_header(block, at)
        if header < 0:
            header = at
        told = _number(block[124:136], at)
        flag = block[156:157]
        begin = at + _BLOCK
        if flag in b"LKxg":
            if told > _MOST_EXTENDED:
                raise _Damaged(f"a header claims a name of {told} bytes, at byte {at}; pack it again")
            extended = bytes(read(begin, told))
            if len(extended) < told:
                raise _Damaged(f"is cut short within a long name, at byte {begin}; copy it again")
            if flag == b"L":
                name = _text(extended)
            elif flag == b"x":
                records = dict(_pax(extended, begin))
                name = records.get("path", name)
                size = _whole(records["size"], begin) if "size" in records else size
                if any(key.startswith("GNU.sparse") for key in records):
                    raise _Damaged(f"has a sparse member, at byte {header}; pack it without --sparse")
            at = begin + -(-told // _BLOCK) * _BLOCK
            if flag == b"g":
                header = -1 if header == begin - _BLOCK else header
            continue
        if flag == b"S":
            raise _Damaged(f"has a sparse member, at byte {header}; pack it without --sparse")
        told = told if size < 0 else size
        if flag in (b"0", b"\0", b"7"):
            if begin + told > nbytes:
                raise _Damaged(
                    f"is cut short: {name or _name(block)!r} ends at byte {begin + told} of {nbytes}; copy it again"
                )
            yield Member(name or _name(block), header, begin, told)
        else:  # links, folders and devices have no content, whatever their size says
            if flag in (b"1", b"2") and split_name(name or _name(block)) is not None:
                raise _Damaged(
                    f"has a link in the place of a file, {name or _name(block)!r} at byte {header}; pack it again with"
                    " -h --hard-dereference"
                )
            told = told if flag not in b"123456" else 0
        at = begin + -(-told // _BLOCK) * _BLOCK
        header, name, size = -1, "", -1
    if whole:
        raise _Damaged(f"has no end mark after {nbytes} bytes: it was cut short; copy it again")
    if header >= 0:
        raise _Damaged(f"is cut short after a long name, at byte {nbytes}; copy it again")


def _reader_of(file: OpenedFile, nbytes: int) -> Callable[[int, int], Buffer]:
    """Bytes of a file: the more headers with one read the longer they have been near one another, else no content."""
    held, start, last, size = b"", 0, 0, _BLOCK

    def read(at: int, wanted: int) -> Buffer:
        nonlocal held, start, last, size
        if not start <= at or at + wanted > start + len(held):
            size = min(4 * size, _MOST_READ) if 0 <= at - last <= _NEAR else _BLOCK
            start, held = at, file.read(at, max(wanted, size))
            if at == 0:
                for magic, program in _PACKED.items():
                    if held.startswith(magic):
                        raise _Damaged(f"is compressed, and no sample in it can be read alone; run {program} on it")
        last = at
        return held[at - start : at - start + wanted]

    if nbytes == 0:
        raise _Damaged("is empty; copy it again")
    return read


def _is_header(block: bytes, at: int) -> None:
    """Raises where the sum of its bytes, with blanks for the field that holds it, is not what that field says."""
    told = _number(block[148:156], at) + sum(block[148:156]) - 8 * 32
    if zlib.adler32(block) & 0xFFFF == (told + 1) % _ADLERS_MODULUS:  # of the same sum, and much quicker
        return
    total = sum(block)
    if told in (total, total - 256 * sum(byte > 127 for byte in block)):  # some old programs took bytes as signed
        return
    if block[257:262] == b"ustar":
        raise _Damaged(f"has a damaged header at byte {at}; copy it again")
    what = "is not a tar file" if at == 0 else f"has no header where one should be, at byte {at}"
    raise _Damaged(f"{what}; give a plain tar, or copy it again")


def _number(field: bytes, at: int) -> int:
    """A field of a header: octal digits, or binary where its first bit is set."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0") or b"0"
    if digits.strip(b"01234567"):  # int() would take a sign, and a size below 0 leads back to where it was
        raise _Damaged(f"has a damaged header at byte {at}; copy it again")
    return int(digits, 8)


def _name(block: bytes) -> str:
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        return f"{_text(block[345:500])}/{name}"
    return name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _pax(data: bytes, at: int) -> Iterator[tuple[str, str]]:
    """The records `length key=value\\n` of a pax header."""
    place = 0
    while place < len(data) and data[place]:
        digits, space, _ = data[place : place + 20].partition(b" ")
        length = _whole(digits.decode("ascii", "replace"), at)
        record = data[place + len(digits) + 1 : place + length]
        key, equals, value = record[:-1].partition(b"=")
        if not space or not equals or record[-1:] != b"\n":
            raise _Damaged(f"has a damaged pax header at byte {at}; copy it again")
        yield key.decode("utf-8", "replace"), value.decode("utf-8", "surrogateescape")
        place += length


def _whole(text: str, at: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise _Damaged(f"has a damaged pax header at byte {at}; copy it again")
    return int(text)
