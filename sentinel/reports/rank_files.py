"""RankFiles: where a rank's report goes, what the other ranks may read of it, and the one report over all of them.

Beside the report of rank 3, `r.rank3.html`, lies `r.rank3.json` with its headline. Who ends reads those of all ranks
and writes `r.html`: the last one to end has seen all of them. No rank waits for another.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from sentinel.core.errors import FormatError
from sentinel.files.disk import may_be_written, write_whole
from sentinel.reports import forms
from sentinel.reports.all_ranks import AllRanks
from sentinel.reports.rank_rows import TRAINS, RankRow, read, told_by
from sentinel.reports.session_report import Report
from sentinel.system.launched import Launched, of_rank

MOST_WRITERS = 64
"""Of a job of more ranks, rank 0 alone writes the report over all: each of them would read the files of all others."""
_CLOCKS_APART_S = 2.0
"""Files of a rank that were written before this rank began, by more than that, are of an earlier job."""
_BEGINS = f'{{"format": "{forms.FORMAT}"'.encode()


class RankFiles:
    """`path`: of the report, without a rank, absolute. `own`: that of this rank's. `began_s`: when this rank began, as
    `time.time()` tells."""

    def __init__(self, path: str, who: Launched, began_s: float | None = None) -> None:
        self.path, self.who = path, who
        self.own = of_rank(path, who.rank)
        self._began_s = time.time() if began_s is None else began_s
        self._form = os.path.splitext(path)[1].lower()

    @property
    def written(self) -> list[str]:
        """What this rank writes: its report, its facts, and the report over all ranks."""
        over_all = () if self._form == ".trace" else (self.path,)
        return list(dict.fromkeys((self.own, self._facts(self.who.rank), *over_all)))

    def foreign(self) -> str:
        """The first file that would be written and is somebody else's, of those that the user has not named; or ""."""
        facts = self._facts(self.who.rank)
        return "" if facts == self.own or may_be_written(facts, _BEGINS) else facts

    def begin(self, state: str = TRAINS) -> None:
        """This rank trains from now on, and has no report yet; or will have none. Raises FormatError."""
        told = told_by(self.who, state, None, None)
        self._save({"headline": {}, "caveats": [], "frames": {}, "rank": told})

    def write(self, report: Report, state: str) -> bool:
        """Write this rank's report, and the one over all ranks. Whether that was written, and all have ended.

        `state`: TRAINS, ENDED or FAILED. Raises FormatError where a file cannot be written.
        """
        told = told_by(self.who, state, report.plan, report.setup.script)
        if self._form == ".json":
            self._save({**forms.as_json(report), "rank": told})
        else:
            report.write(self.own)
            self._save({"headline": report.headline, "caveats": report.caveats, "frames": {}, "rank": told})
        if self._form == ".trace" or (self.who.rank and (state == TRAINS or self.who.size > MOST_WRITERS)):
            return False
        return self._write_over_all()

    def _write_over_all(self) -> bool:
        """Once more where another rank has written meanwhile: whichever of two that end at once writes last has seen
        both."""
        for _ in range(self.who.size + 1):
            seen = [_version(self._facts(rank)) for rank in range(self.who.size)]
            over_all = AllRanks(self._rows(), self.who.size)
            over_all.write(self.path)
            if seen == [_version(self._facts(rank)) for rank in range(self.who.size)]:
                break
        return all(row.told.get("state", TRAINS) != TRAINS for row in over_all.facts)

    def _rows(self) -> list[RankRow]:
        """Those of the ranks of this job that have written something."""
        found = []
        job = told_by(self.who, TRAINS, None, None)["job"]
        for rank in range(self.who.size):
            try:
                row = read(self._facts(rank))
            except FormatError:
                continue
            written = row.told.get("written_s")
            late = isinstance(written, int | float) and written >= self._began_s - _CLOCKS_APART_S
            if late and row.rank == rank and (row.told["size"], row.told.get("job")) == (self.who.size, job):
                found.append(row)
        return found

    def _facts(self, rank: int) -> str:
        return os.path.splitext(of_rank(self.path, rank))[0] + ".json"

    def _save(self, value: dict[str, Any]) -> None:
        text = json.dumps({"format": forms.FORMAT, "version": forms.VERSION, **value}, allow_nan=False)
        write_whole(self._facts(self.who.rank), text.encode(errors="backslashreplace") + b"\n")


def _version(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
