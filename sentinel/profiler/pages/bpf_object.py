"""Reads a compiled eBPF object: its programs, and where they name maps. Just what our own objects need."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from sentinel.core.errors import FormatError

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQ")
_REL, _SYMTAB = 9, 2
_MAP_LOAD = 1  # R_BPF_64_64: a 64-bit load that names a map
_PSEUDO_MAP_FD = 1


@dataclass(frozen=True)
class Program:
    """Instructions as compiled, and the offsets in them that need a map's descriptor."""

    section: str
    code: bytes
    maps: tuple[tuple[int, str], ...]

    def linked(self, descriptors: dict[str, int]) -> bytes:
        """The instructions with each map's descriptor put in."""
        code = bytearray(self.code)
        for offset, name in self.maps:
            code[offset + 1] = code[offset + 1] & 0x0F | _PSEUDO_MAP_FD << 4
            struct.pack_into("<i", code, offset + 4, descriptors[name])
        return bytes(code)


def read_programs(path: Path, prefix: str) -> list[Program]:
    """The programs of the ELF object at `path` whose sections begin with `prefix`. Raises FormatError."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise FormatError(path, "header", "is no 64-bit little-endian ELF object; run make -C ebpf")
    try:
        return _programs(data, prefix)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise FormatError(path, "sections", f"are cut short or damaged ({error}); run make -C ebpf") from error


def _programs(data: bytes, prefix: str) -> list[Program]:
    table, size, count, names_at = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HHH", data, 58)
    headers = [_SECTION.unpack_from(data, table + i * size) for i in range(count)]

    def content(index: int) -> bytes:
        return data[headers[index][4] : headers[index][4] + headers[index][5]]

    names = [_text(content(names_at), header[0]) for header in headers]
    programs = []
    for index, name in enumerate(names):
        if not name.startswith(prefix):
            continue
        maps: list[tuple[int, str]] = []
        for kind, header in ((h[1], h) for h in headers):
            if kind == _REL and header[7] == index:
                relocations = content(headers.index(header))
                symbols, strings = content(header[6]), content(headers[header[6]][6])
                maps += _named(relocations, symbols, strings)
        programs.append(Program(name, content(index), tuple(maps)))
    return programs


def _named(relocations: bytes, symbols: bytes, strings: bytes) -> list[tuple[int, str]]:
    found = []
    for offset, info in _RELOCATION.iter_unpack(relocations):
        if info & 0xFFFFFFFF == _MAP_LOAD:
            found.append((offset, _text(strings, _SYMBOL.unpack_from(symbols, (info >> 32) * _SYMBOL.size)[0])))
    return found


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()
