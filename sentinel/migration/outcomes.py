"""What became of moves and births: where blocks are now, what the run has rows of, and what the user is told.

The report has all that went wrong; the user is warned of the first of each kind.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.core.errors import TierError
from sentinel.core.plan import Plan
from sentinel.core.units import format_bytes
from sentinel.migration.backoff import FAILURES, HOLD_STEPS
from sentinel.migration.birth_nodes import BirthNodes
from sentinel.migration.block_table import BlockTable
from sentinel.migration.job_memory import JobMemory
from sentinel.migration.move import Ended
from sentinel.migration.page_audit import PageAudit
from sentinel.migration.run_recorder import RunRecorder
from sentinel.migration.transients import Unplaced
from sentinel.tiers.tier import FAST


class Outcomes:
    """Keeps `table`, `birth_nodes` and `recorder` up to date, and tells `audit` what was found of pages. `job` says how
    to warn."""

    def __init__(
        self,
        plan: Plan,
        job: JobMemory,
        table: BlockTable,
        birth_nodes: BirthNodes,
        recorder: RunRecorder,
        audit: PageAudit,
    ) -> None:
        self._plan, self._job, self._table, self._birth_nodes = plan, job, table, birth_nodes
        self._recorder, self._audit = recorder, audit
        self._warned_of_failure = False

    # ---- moves ------------------------------------------------------------------------------------------

    def ended(self, moves: Iterable[Ended]) -> None:
        """Blocks are where these moves left them. Raises the last failure where the job is strict."""
        self._raise([self._land(move) for move in moves])

    def refused(self, moves: Iterable[Ended]) -> None:
        """They were not begun, and end now. Raises the last failure where the job is strict."""
        now_ns = self._job.clock.now_ns
        self._raise([self._record(move._replace(stop_ns=now_ns())) for move in moves])

    def _land(self, ended: Ended) -> TierError | None:
        block, before = ended.move.block, self._table.spread(ended.move.block)
        self._table.put(block, ended.tier, ended.bytes_in)
        self._birth_nodes.moved(ended)
        if ended.queued is not None:
            self._table.serve(block, ended.queued.served_by)
        if ended.move.reason != "stray":
            return self._record(ended)
        self._recorder.totals.swept += 1
        found = self._audit.found(ended, before)
        if found is not None:
            self._recorder.migration(found.row(), found.outcome)
        return None

    def _record(self, ended: Ended) -> TierError | None:
        self._recorder.migration(ended.row(), ended.outcome)
        if ended.move.sent_further:
            self._sent_further(ended.move.block)
        if ended.held_back:
            self._recorder.totals.held_back += 1
        return self._failed(ended) if ended.failed else None

    def _failed(self, ended: Ended) -> TierError:
        move = ended.move
        name, way = self._name(move.block), "from" if move.target == FAST else "to"
        error = TierError(
            f"moving {name} ({format_bytes(move.nbytes)}) {way} it left {format_bytes(ended.stayed_bytes)} where they"
            " were",
            tier=self._plan.tier_names[move.served_by],
            block=move.block,
            errno=ended.errno,
        )
        self._recorder.event(str(error))
        if ended.gives_up:
            self._recorder.event(f"{name} failed {FAILURES} times: it is held where it is for {HOLD_STEPS} steps")
        if not self._warned_of_failure and not self._job.strict:
            self._warned_of_failure = True
            self._job.warn(f"{error}; training goes on, the report lists all that failed")
        return error

    def _raise(self, found: list[TierError | None]) -> None:
        failures = [each for each in found if each is not None]
        if failures and self._job.strict:
            raise failures[-1]

    # ---- what else may go wrong -------------------------------------------------------------------------

    def unplaced(self, births: Iterable[Unplaced]) -> None:
        """Their tiers had no room for these births. Raises TierError where the job is strict and one was forced."""
        totals = self._recorder.totals
        for birth in births:
            if self._plan.blocks[birth.block].tier != FAST:
                self._sent_further(birth.block)
                continue
            name, nbytes = self._name(birth.block), format_bytes(self._plan.blocks[birth.block].nbytes)
            if birth.tier != FAST:
                if not totals.born_slow:
                    self._recorder.event(f"{name} was born in slow memory: {nbytes} had no room")
                totals.born_slow += 1
                continue
            sentence = f"{name} was born in fast memory with no room for {nbytes}: the budget was exceeded"
            if not totals.overflows:
                self._job.warn(f"{sentence}; the report says how often and by how much")
            totals.overflows += 1
            self._recorder.event(sentence)
            self._raise([TierError(sentence, tier="fast", block=birth.block)])

    def _sent_further(self, block: int) -> None:
        if not self._recorder.totals.sent_further:
            self._recorder.event(f"{self._name(block)} went to tier {self._plan.tier_names[-1]}: its own had no room")
        self._recorder.totals.sent_further += 1

    def began_beyond(self, overflow_bytes: int) -> None:
        """The plan's blocks did not fit into the budget as it was first applied."""
        sentence = f"the fast tier starts with {format_bytes(overflow_bytes)} beyond its budget"
        self._recorder.event(sentence)
        self._job.warn(f"{sentence}: some blocks could not be moved; the report lists them")

    def report_strays(self) -> None:
        """The run is told of what the kernel had placed against the plan, as found since the last call."""
        found = self._audit.report()
        if found is not None:
            pages, sentence = found
            self._recorder.totals.kernel_placed_pages += pages
            self._recorder.event(sentence)

    def _name(self, block: int) -> str:
        return self._plan.blocks[block].name or f"block {block}"
