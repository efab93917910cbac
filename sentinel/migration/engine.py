"""The engine: carries a Plan out, step after step, on real or emulated tiers.

It acts at ticks only, as `core.schedule` says, and never writes bytes itself: a wrong plan, a late or failed move
costs time, not data. A block is used where it is.

It joins what knows one thing each: the agenda what is to happen, the block table where blocks are, the block mover what
becomes of moves, transients who is born and dies, birth nodes where untouched pages are born, the mover the accounts,
the recorder what happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.run import Run
from sentinel.core.step_follower import Position
from sentinel.core.units import format_bytes
from sentinel.migration.agenda import Agenda, Batch
from sentinel.migration.birth_nodes import BirthNodes
from sentinel.migration.block_mover import BlockMover
from sentinel.migration.block_table import BlockTable
from sentinel.migration.delay import Delay
from sentinel.migration.due_moves import DueMoves
from sentinel.migration.handover import Handover
from sentinel.migration.job_memory import JobMemory
from sentinel.migration.move import Move
from sentinel.migration.mover import NativeMover
from sentinel.migration.moves import Moves
from sentinel.migration.outcomes import Outcomes
from sentinel.migration.page_audit import Blocks, PageAudit
from sentinel.migration.residents import Residents, Wanted, Way
from sentinel.migration.run_recorder import RunRecorder
from sentinel.migration.transients import Transients
from sentinel.runtime import RUNTIME
from sentinel.system.progress import telling
from sentinel.tiers import open_tiers, require_fit
from sentinel.tiers.tier import FAST, holds_pages

_UNLIMITED = 1 << 62


class Engine:
    """Applies `plan` on `machine`. One thread calls it: `start`, then `begin_layer` at each tick, `end_run`, `restore`.

    `before`: the run of another plan whose place this one takes; see RunRecorder. In a forked child the engine does
    nothing. Raises UsageError if the plan does not fit the machine, CapabilityError if its tiers cannot be applied.
    """

    def __init__(self, plan: Plan, machine: Machine, job: JobMemory, before: Run | None = None) -> None:
        require_fit(plan, machine)
        self._plan, self._job, self._now_ns = plan, job, job.clock.now_ns
        tiers = len(plan.capacity_bytes)
        self._mover = NativeMover(plan.capacity_bytes[FAST], full_duplex=machine.full_duplex, tiers=tiers)
        try:
            for tier in range(FAST + 1, tiers):
                self._mover.set_capacity(plan.capacity_bytes[tier], tier)
            self._tiers = open_tiers(machine, job.bytes_per_s)
        except BaseException:
            self._mover.close()  # its workers would stay
            raise
        self._has_pages = holds_pages(self._tiers)
        self._agenda = Agenda(plan)
        self._table = BlockTable(plan, self._tiers)
        self._moves = Moves(self._tiers, self._mover, self._table, job.ranges)
        self._residents = Residents(plan, self._tiers, job.ranges, self._mover, self._table)
        self._transients = Transients(plan, self._tiers, job, self._mover, self._table)
        nodes = [tier.node for tier in machine.tiers]
        self._birth_nodes = BirthNodes(plan, nodes, job.ranges, self._mover.bind_untouched)
        self._audit = PageAudit(plan, self._mover.forks())
        self._blocks = Blocks(self._table.tier, self._table.held, self._moves.blocks)
        self._recorder = RunRecorder(before)
        self._outcomes = Outcomes(plan, job, self._table, self._birth_nodes, self._recorder, self._audit)
        self._block_mover = BlockMover(self._moves, self._table, self._outcomes, job.clock)
        self._due = DueMoves(plan, self._agenda, self._moves, self._recorder, job.clock)
        self._delay = Delay(job.clock)
        self._applying = self._forked = False
        RUNTIME.not_inherited.add(self)

    @property
    def _inert(self) -> bool:
        """Whether its movers have ended, or are those of a parent."""
        return self._forked or self._mover.closed

    # ---- the four calls ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Put every block where layer 0, which is under way, wants it; begin the first step."""
        self._recorder.began_ns = self._now_ns()
        self._mover.set_capacity(_UNLIMITED)
        away = self._residents.place()
        self._outcomes.unplaced(self._residents.place_others())
        self._bring("placing tensors for the first step", away)
        self._applying = True
        self._mover.set_capacity(self._plan.capacity_bytes[FAST])
        held = self._mover.held()
        if held.overflows:
            self._outcomes.began_beyond(held.overflow_bytes)
        now = self._now_ns()
        self._recorder.begin_step(now)
        self._mover.held(restart=True)
        self._begin_planned(self._agenda.crossing, 0)
        self._start_moves_and_births(0)
        self._recorder.begin_layer(now, 0)

    def begin_layer(self, at: Position) -> None:
        """A tick. Waits where the plan says so, and for injected delays. Where no layer begins, nothing new starts
        until one does."""
        if self._forked or not self._applying:
            return
        layer, ended = at
        if layer is None:
            self._abandon_step()
            return
        if ended == "cut short":
            self._begin_anew()
            if not layer:
                return
        over = (layer or self._plan.n_layers) - 1
        costs, now = self._table.costs(over), self._now_ns()
        if costs[0]:
            now = self._delay.inject(costs[0], now)
        high_bytes, slow_high_bytes = self._mover.restart_high_bytes()
        self._recorder.end_layer(over, now, costs, high_bytes, slow_high_bytes)
        if self._moves.blocks:  # else nothing can have ended
            self._block_mover.collect()
        if not layer:
            self._recorder.end_step(now, in_step=True, unmanaged_bytes=self._job.unmanaged_bytes())
        self._enter(layer, now)

    def forked(self) -> None:
        """In a forked child no mover runs: whatever ticks there must not wait for one."""
        self._forked = True

    def end_run(self) -> Run:
        """Wait for what is under way (the step under way is not in the tables) and return what was executed.

        Where the plan is not applied yet, since `start` was interrupted, what has not begun to move stays: `restore`
        would only bring it back."""
        if not self._inert:
            if self._applying:
                self._block_mover.finish()
            else:
                self._block_mover.cancel()
            self._applying = False
            self._transients.release_kept()
            self._outcomes.report_strays()
        return self.so_far()

    def so_far(self) -> Run:
        """What was executed in the steps that have ended, while the plan goes on being applied."""
        self._count_accounts()
        emulated = any(tier is not None and tier.spec.kind == "emulated" for tier in self._tiers)
        return self._recorder.run(self._plan.tier_names, self._plan.capacity_bytes[FAST], emulated=emulated)

    def restore(self) -> None:
        """Bring every block that lives on to where it would be without a plan; end the movers, whatever is raised."""
        try:
            self._applying = False
            if not self._inert:
                self._block_mover.finish()
                self._mover.set_capacity(_UNLIMITED)
                self._bring("bringing tensors back", self._residents.away_from_home())
                self._birth_nodes.all_go_home()
                self._count_accounts()
        finally:
            self._mover.close()

    def _bring(self, what: str, wanted: Sequence[Wanted]) -> None:
        """Move these blocks, and wait until they are there; says how far it is where that takes long. Nothing is under
        way."""
        nbytes, before = [self._table.nbytes[each.block] for each in wanted], self._mover.ended()

        def how_far() -> str:
            ended = sum(nbytes[: self._mover.ended() - before])  # the mover takes them in this order
            return f"{format_bytes(ended)} of {format_bytes(sum(nbytes))}"

        with telling(what, how_far):
            self._block_mover.send(wanted, self._recorder.step)
            self._block_mover.finish()

    # ---- from one plan to another -----------------------------------------------------------------------

    def hand_over(self) -> Handover:
        """Rest, and hold nothing, until `take_over`: tells where persistent bytes are. A step under way is no step."""
        self._abandon_step()
        self._applying = False
        self._block_mover.cancel()
        spans = self._residents.give()
        self._release((*self._residents.passing, *self._residents.wrapping))
        births_away = self._birth_nodes.give()
        self._transients.give_back(self._mover.held().bytes_in)
        self._table.held[:] = [False] * len(self._table.held)
        self._recorder.drop_step()
        return Handover(self._recorder.layer_began_ns, spans, births_away)

    def take_over(self, given: Handover, *, in_step: bool) -> None:
        """Apply this plan from now on, in layer 0 (`in_step`) or from the next step, with bytes where `given` says.

        What this plan wants elsewhere is sent there: out of fast memory before anything takes its room.
        """
        now = self._now_ns()
        self._take(given, now)
        self._recorder.begin_step(given.began_ns)
        self._mover.held(restart=True)
        self._send("out")
        self._block_mover.finish()
        self._applying = True
        self._outcomes.unplaced(self._residents.place_others())
        stall = 0
        if in_step:
            stall = self._now_ns() - now + self._resume()
            self._start_moves_and_births(0)
        self._recorder.begin_layer(given.began_ns, stall)

    def bring_home(self, given: Handover) -> None:
        """Instead of `take_over`, where no plan is applied any more: `restore` from where `given` says bytes are."""
        self._take(given, self._now_ns())
        self.restore()

    def _take(self, given: Handover, now: int) -> None:
        self._recorder.began_ns = self._recorder.began_ns or given.began_ns or now
        self._residents.take(given.spans)
        if given.births_away:
            self._birth_nodes.take(self._residents.partly_away())
        if given.look_soon:
            self.look_soon()

    def _resume(self) -> int:
        """Back in step at layer 0: take blocks as they are, and send them where the plan has them by now."""
        self._due.begin_step()
        stall = self._release(self._residents.passing)
        self._send("out")
        stall += self._reserve([block for block in self._residents.wrapping if not self._table.held[block]])
        self._send("into fast memory")  # births go before promotions
        self._send("into a middle tier")
        self._begin_planned(self._agenda.crossing, 0)
        return stall

    def _send(self, way: Way) -> None:
        misplaced = self._residents.misplaced(self._moves.blocks, way)
        self._block_mover.send(misplaced, self._recorder.step)
        self._recorder.totals.sent_back += len(misplaced)

    # ---- a layer ----------------------------------------------------------------------------------------

    def _abandon_step(self) -> None:
        """The ticks are not those of the plan."""
        self._transients.release_kept()  # the plan's order is what made room for it
        self._due.abandon()

    def _begin_anew(self) -> None:
        """A step is over that was not the plan's, or not from its beginning on; the next one begins with layer 0."""
        self._abandon_step()
        now = self._now_ns()
        self._recorder.pass_layers(self._mover.restart_high_bytes()[0][FAST])
        self._block_mover.collect()
        self._recorder.end_step(now, in_step=False, unmanaged_bytes=self._job.unmanaged_bytes())
        self._enter(0, now, self._resume())

    def _enter(self, layer: int, now: int, stall: int = 0) -> None:
        """What the schedule says as `layer` begins, which has waited for `stall` ns already."""
        agenda = self._agenda
        if self._has_pages:
            self._look_for_strays(layer)
        if agenda.busy[layer]:
            if agenda.expects[layer]:
                self._due.enter(layer, now)
            stall += self._finish_due(layer)
            if agenda.dead[layer]:
                stall += self._release(agenda.dead[layer], keep=True)
            stall += self._start_moves_and_births(layer)
        if self._has_pages:
            self._block_mover.look_at(self._audit.in_passing(self._blocks), self._recorder.step, layer)
        self._recorder.begin_layer(now, stall)

    def _start_moves_and_births(self, layer: int) -> int:
        """In the order that Agenda tells of. Returns the ns waited for room."""
        agenda = self._agenda
        self._begin_planned(agenda.before_births[layer], layer)
        if not agenda.born[layer]:
            return 0
        stall = self._reserve(agenda.born[layer], agenda.born_fast_bytes[layer])
        self._begin_planned(agenda.after_births[layer], layer)
        return stall

    def _begin_planned(self, batches: Iterable[Batch], layer: int) -> None:
        asked, step = self._agenda.asked, self._recorder.step
        for batch in batches:
            begun = self._block_mover.begin([Move(step, layer, *asked[index]) for index in batch])
            self._due.began(batch, begun.under_way)
            self._outcomes.refused(begun.refused)

    def _finish_due(self, layer: int) -> int:
        """Migrations due before `layer`: late promotions are waited for or left. Returns the ns waited."""
        late = self._due.late(layer)
        if not late:
            return 0
        starved = bool(self._mover.held().starved)
        if starved:
            self._transients.release_kept()
        stall = self._due.wait_or_leave(layer, late, starved=starved)
        self._block_mover.collect()
        return stall

    def look_soon(self) -> None:
        """See PageAudit.hurry."""
        self._audit.hurry()

    def _look_for_strays(self, layer: int) -> None:
        """`layer` begins: look at the pages of blocks that promotions are to wait for."""
        ended = (layer or self._plan.n_layers) - 1
        totals, step = self._recorder.totals, self._recorder.step
        self._audit.forked(self._mover.forks())
        if layer:
            checks = self._audit.after_layer(ended, self._blocks)
        else:
            self._outcomes.report_strays()
            checks = self._audit.after_step(ended, step, totals.failed + totals.partial, self._blocks)
        if checks:
            self._block_mover.look_at(checks, step, layer)

    # ---- births and deaths ------------------------------------------------------------------------------

    def _reserve(self, born: Sequence[int], fast_bytes: int | None = None) -> int:
        """`born` take their room, one by one where `fast_bytes` is not given. Returns the ns waited."""
        again = [block for block in born if self._table.held[block]]  # outlived their death: ticks were cut short
        waited = self._release(again) if again else 0
        if fast_bytes is None or again:
            waited_for_room, unplaced = self._transients.reserve_each(born)
        else:
            waited_for_room, unplaced = self._transients.reserve(born, fast_bytes)
        self._outcomes.unplaced(unplaced)
        return waited + waited_for_room

    def _release(self, blocks: Sequence[int], *, keep: bool = False) -> int:
        """Lives are over. Returns the ns waited for what was under way for them; see Transients."""
        waited = self._block_mover.end([block for block in blocks if self._table.held[block]])
        self._transients.release(blocks, keep=keep)
        self._birth_nodes.go_home(blocks)
        return waited

    # ---- what is recorded -------------------------------------------------------------------------------

    def _count_accounts(self) -> None:
        """What others have counted goes into the run's totals."""
        totals = self._recorder.totals
        totals.injected_ns = self._delay.injected_ns
        totals.discarded_bytes, totals.kept_bytes = self._transients.discarded_bytes, self._transients.kept_bytes
        if not self._inert:
            held = self._mover.held()
            totals.overflow_bytes, totals.slow_overflow_bytes = held.overflow_bytes, held.slow_overflow_bytes
            copied = self._mover.copied()
            totals.copied_bytes, totals.uncopied_bytes = copied.copied_bytes, copied.refused_bytes
            totals.copy_cpu_ns = copied.cpu_ns
            totals.stayed = self._mover.errors()
