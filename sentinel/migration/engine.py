"""The engine: carries a Plan out, step after step, on real or emulated tiers.

It acts at ticks only, as `core.schedule` says, and never touches bytes itself: a wrong plan, a late or failed move
costs time, not data. A block is used where it is.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Sequence

from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan, Reason
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.units import format_bytes
from sentinel.core.uses import block_uses
from sentinel.migration.agenda import Agenda
from sentinel.migration.block_table import BlockTable
from sentinel.migration.clock import MONOTONIC, Clock
from sentinel.migration.flights import Flight, Flights
from sentinel.migration.handover import Handover, Pieces
from sentinel.migration.keeping import kept_pieces
from sentinel.migration.ledger import Ledger
from sentinel.migration.lives import Lives
from sentinel.migration.mover import NativeMover
from sentinel.migration.rows import Rows
from sentinel.migration.strays import Strays
from sentinel.migration.trials import Trials
from sentinel.tiers import open_tiers
from sentinel.tiers.tier import FAST, MOST_TIERS

_UNLIMITED = 1 << 62
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """Applies `plan` on `machine`. One thread calls it: `start`, then `begin_layer` at each tick, `end_run`, `restore`.

    `ranges(block)`: (address, nbytes) of its pieces in this process. `discard(offset, nbytes)`: drop the pages of dead
    transient blocks at these plan addresses, so that the next ones are born at home. `unmanaged_bytes()`: most bytes
    that fell back to malloc in the step that ends. `before`: the run of another plan whose place this one takes; see
    Ledger. `clock`: what layers, waits and injected delays are timed by. `profile` may be None for a plan that carries
    its uses. In a forked child the engine does nothing. Raises UsageError if the plan does not fit the machine,
    CapabilityError if its tiers cannot be applied here.
    """

    def __init__(
        self,
        plan: Plan,
        profile: Profile | None,
        machine: Machine,
        *,
        ranges: Callable[[int], list[tuple[int, int]]],
        warn: Callable[[str], None],
        strict: bool = False,
        discard: Callable[[int, int], None] | None = None,
        unmanaged_bytes: Callable[[], int] | None = None,
        before: Run | None = None,
        clock: Clock = MONOTONIC,
    ) -> None:
        _require_fit(plan, machine)
        self._plan, self._warn = plan, warn
        self._now_ns = clock.now_ns
        self._mover = NativeMover(plan.capacity_bytes[0], full_duplex=machine.full_duplex)
        try:
            self._tiers = open_tiers(machine, self._mover)
        except BaseException:
            self._mover.close()  # lest its workers stay
            raise
        uses = plan.uses if len(plan.uses) or profile is None else block_uses(plan, profile)
        self._table = BlockTable(plan, uses, self._tiers)
        self._ledger = Ledger(before)
        self._flights = Flights(
            plan.blocks, self._mover, self._tiers, self._table, self._ledger, ranges, warn, strict
        )
        self._emulated = any(tier is not None and tier.spec.kind == "emulated" for tier in self._tiers)
        self._lives = Lives(
            plan.blocks,
            self._mover,
            self._table,
            self._flights,
            self._ledger,
            emulated=self._emulated,
            warn=warn,
            strict=strict,
            discard=discard,
            keeps={} if self._emulated or discard is None else kept_pieces(plan),
        )
        self._strays = Strays(plan, uses, self._table, self._flights, self._ledger, self._mover.forks)
        self._agenda = Agenda(plan, uses)
        self._pieces = functools.cache(lambda: Pieces(self._agenda.lasting, ranges))
        self._trials = Trials(self._agenda.boundaries, self._note_decision)
        self._by_move: dict[int, Flight] = {}  # migration -> what is under way for it, until it is due
        self._rows = Rows(self._mover, self._table, self._flights, self._ledger, unmanaged_bytes, clock)
        self._layer = 0
        self._in_step = self._applying = False
        self._forked = False
        _engines.add(self)

    @property
    def _inert(self) -> bool:
        """Whether its movers have ended, or are those of a parent."""
        return self._forked or self._mover.closed

    # ---- the four calls ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Put every block where layer 0, which is under way, wants it; begin the first step."""
        self._applying = self._in_step = True
        self._flights.began_ns = self._now_ns()
        self._place_all()
        now = self._now_ns()
        self._rows.begin_step(now)
        self._mover.held(restart=True)
        self._submit(self._agenda.crossing, 0)
        self._start_moves_and_births(0)
        self._rows.open_layer(0, now, 0)

    def begin_layer(self, layer: int) -> None:
        """A tick: the layer before has ended, `layer` begins. Waits where the plan says so, and for injected delays."""
        if self._inert or not self._applying:
            return
        if layer and (not self._in_step or layer != self._layer + 1):
            self.out_of_step()
            return
        now = self._rows.close_layer() if self._in_step else self._rows.skip_layers()
        self._flights.collect()
        stall = 0
        if layer == 0:
            if self._in_step and self._layer != self._plan.n_layers - 1:
                self.out_of_step()  # cut short
            self._rows.end_step(now, in_step=self._in_step)
            if not self._in_step:
                stall = self._resume()
        if not self._emulated and self._in_step:
            self._strays.look(self._layer, self._rows.step, layer)
        self._layer = layer
        if self._agenda.expects[layer]:
            self._trials.enter(layer, now)
        if self._agenda.busy[layer]:
            stall += self._act(layer)
        self._rows.open_layer(layer, now, stall)

    def out_of_step(self) -> None:
        """The ticks are not those of the plan: nothing new starts until layer 0 comes round."""
        self._in_step = False
        self._lives.let_go()  # the plan's order is what made room for it
        self._trials.abandon()

    @property
    def closed(self) -> bool:
        """Whether its movers have ended."""
        return self._mover.closed

    def end_run(self) -> Run:
        """Wait for what is under way (the step under way is not in the tables) and return what was executed."""
        if not self._inert:
            self._applying = False
            self._finish_flights()
            self._lives.let_go()
            self._strays.tell_last()
            self._count_accounts()
        return self._ledger.run(self._plan.tier_names, self._plan.capacity_bytes[0], emulated=self._emulated)

    def so_far(self) -> Run:
        """What was executed in the steps that have ended, while the plan goes on being applied."""
        self._count_accounts()
        return self._ledger.run(self._plan.tier_names, self._plan.capacity_bytes[0], emulated=self._emulated)

    def restore(self) -> None:
        """Bring every block that lives on to where it would be without a plan; end the movers, whatever is raised."""
        try:
            if not self._inert:
                self._bring_all_home()
        finally:
            self._mover.close()

    def _bring_all_home(self) -> None:
        self._applying = False
        self._finish_flights()
        if not self._emulated:
            self._mover.set_capacity(_UNLIMITED)
            for index, block in enumerate(self._plan.blocks):
                if not block.fixed and self._table.held[index] and self._table.fast_bytes[index] < block.nbytes:
                    source = self._table.tier[index] = self._table.slower_tier(index)
                    self._flights.submit(index, source, FAST, "restore", self._rows.step, self._layer)
            self._finish_flights()
        self._count_accounts()
        for tier in self._tiers:
            if tier is not None:
                tier.close()

    # ---- from one plan to another -----------------------------------------------------------------------

    def hand_over(self) -> Handover:
        """Rest, and hold nothing, until `take_over`: tells where persistent bytes are. A step under way is no step."""
        self.out_of_step()
        self._applying = False
        for flight in reversed(self._flights.all()):
            self._mover.cancel(flight.job)  # gone if it had not started
        self._finish_flights()
        spans = self._pieces().tell(self._table.bytes_in, self._table.nbytes)
        self._lives.bury((*self._agenda.passing, *self._agenda.wrapping))
        self._lives.give_back(self._mover.held().bytes_in)
        self._table.held[:] = [False] * len(self._table.held)
        self._ledger.no_step()
        return Handover(self._rows.layer_began_ns, spans)

    def take_over(self, given: Handover, *, in_step: bool) -> None:
        """Apply this plan from now on, in layer 0 (`in_step`) or from the next step, with bytes where `given` says.

        What this plan wants elsewhere is sent there: out of fast memory before anything takes its room.
        """
        now = self._now_ns()
        self._count_in(given, now)
        self._applying = True
        self._layer = 0
        self._by_move.clear()
        self._rows.begin_step(given.began_ns)
        self._mover.held(restart=True)
        self._send(demoting=True)
        self._finish_flights()
        for index, block in enumerate(self._plan.blocks):
            if block.fixed and not self._table.held[index]:
                self._hold(index, block.tier)
        for index in self._agenda.wrapping:
            self._hold(index, self._agenda.wanted[index])
        self._in_step = in_step
        if in_step:
            stall = self._now_ns() - now + self._resume()
            self._start_moves_and_births(0)
            self._rows.open_layer(0, given.began_ns, stall)

    def bring_home(self, given: Handover) -> None:
        """Instead of `take_over`, where no plan is applied any more: `restore` from where `given` says bytes are."""
        self._count_in(given, self._now_ns())
        self.restore()

    def _count_in(self, given: Handover, now: int) -> None:
        """Persistent blocks are where `given` says, and in the accounts."""
        self._flights.began_ns = self._flights.began_ns or given.began_ns or now
        for index, spread in self._pieces().read(given.spans, len(self._tiers)).items():
            self._mover.force(spread[FAST])
            for tier, nbytes in enumerate(spread[FAST + 1 :], FAST + 1):
                self._mover.hold(tier, nbytes)
            self._table.held[index] = True
            self._table.put(index, self._to_leave(index, spread), spread)

    def _to_leave(self, index: int, spread: Sequence[int]) -> int:
        """The tier in which a block of such a spread counts as being: of one in parts, those that are not where they
        are wanted follow the others, so it is elsewhere."""
        wanted = self._agenda.wanted[index]
        elsewhere = [tier for tier, nbytes in enumerate(spread) if nbytes and tier != wanted]
        if not elsewhere:
            return wanted
        return FAST if FAST in elsewhere else max(elsewhere, key=lambda tier: spread[tier])

    # ---- a layer ----------------------------------------------------------------------------------------

    def _act(self, layer: int) -> int:
        """What the schedule says as `layer` begins. Returns the ns it waited."""
        stall = self._settle_due(layer)
        if self._agenda.dead[layer]:
            stall += self._lives.bury(self._agenda.dead[layer], keep=True)
        return stall + self._start_moves_and_births(layer)

    def _start_moves_and_births(self, layer: int) -> int:
        """Births take their room before promotions of the same layer may: by the law of capacity both fit, and
        where reality lags behind the plan a birth cannot wait while a promotion can."""
        agenda = self._agenda
        self._submit(agenda.demotions[layer], layer)
        stall = self._lives.bear(agenda.born[layer], agenda.born_fast_bytes[layer]) if agenda.born[layer] else 0
        self._submit(agenda.newborn_demotions[layer], layer)
        self._submit(agenda.promotions[layer], layer)
        return stall

    def _submit(self, moves: tuple[int, ...] | list[int], layer: int) -> None:
        for index in moves:
            move = self._plan.migrations[index]
            flight = self._flights.submit(move.block, move.source, move.target, move.reason, self._rows.step, layer)
            if flight is not None:
                self._by_move[index] = flight

    # ---- what is due ------------------------------------------------------------------------------------

    def _settle_due(self, layer: int) -> int:
        """Migrations due before `layer`: late promotions are waited for or left, as the trials say."""
        late, for_later = [], []
        for index in self._agenda.due[layer]:
            flight = self._by_move.pop(index, None)
            if flight is not None and self._flights.under_way(flight):
                flight.late = True
                if flight.target == 0:
                    late.append(flight)
                    for_later.append(self._agenda.used_later[index])
        if not self._agenda.expects[layer]:
            return 0
        if not late:
            self._ledger.totals.case1 += 1
            return 0
        starved = bool(self._mover.held().starved)
        if starved:
            self._lives.let_go()
            self._ledger.totals.case2 += 1
        else:
            self._ledger.totals.case3 += 1
        stall = 0
        if self._must_wait(late) or self._trials.wait(layer):
            stall = self._await(late)
            self._trials.waited(stall)
        else:
            # What is used later too may still arrive for that. But one that finds no room keeps all others back.
            for flight, later in zip(late, for_later, strict=True):
                if starved or not later:
                    self._mover.cancel(flight.job)
        self._flights.collect()
        return stall

    def _must_wait(self, late: list[Flight]) -> bool:
        """Whether one of them cannot be used where it is."""
        return any(not tier.spec.addressable for f in late if (tier := self._tiers[f.source]) is not None)

    def _await(self, late: list[Flight]) -> int:
        began = self._now_ns()
        for flight in late:
            if not self._mover.wait(flight.job):  # for room that nothing will free: no use
                self._mover.cancel(flight.job)
        return self._now_ns() - began

    def _note_decision(self, layer: int, sentence: str) -> None:
        self._ledger.event(f"{sentence} ({self._plan.layers[layer]})")
        self._ledger.totals.trials += 1

    # ---- where blocks are as layer 0 begins -------------------------------------------------------------

    def _place_all(self) -> None:
        """At the start: persistent blocks to their tiers (real nodes), everything alive into the accounts."""
        self._mover.set_capacity(_UNLIMITED)
        for index, block in enumerate(self._plan.blocks):
            if block.fixed:
                self._hold(index, block.tier)
            elif block.persistent:
                self._hold(index, self._agenda.wanted[index] if self._emulated else 0)
        for index in self._agenda.lasting:
            if not self._emulated and self._agenda.wanted[index]:
                self._flights.submit(index, 0, self._agenda.wanted[index], "initial", 0, 0)
        for index in self._agenda.wrapping:
            # Born before there was a plan, its tensor is elsewhere and its own pages are not there yet: on no node.
            self._hold(index, self._agenda.wanted[index])
        self._finish_flights()
        self._mover.set_capacity(self._plan.capacity_bytes[0])
        held = self._mover.held()
        if held.overflows:
            sentence = f"the fast tier begins with {format_bytes(held.overflow_bytes)} beyond its budget"
            self._ledger.event(sentence)
            self._warn(f"{sentence}: some blocks could not be moved; the report lists them")

    def _hold(self, index: int, tier: int) -> None:
        nbytes = self._plan.blocks[index].nbytes
        if tier == FAST:
            self._mover.force(nbytes)
        else:
            self._mover.hold(tier, nbytes)
        self._table.held[index] = True
        self._table.place(index, tier)

    def _resume(self) -> int:
        """Back in step at layer 0: take blocks as they are, and send them where the plan has them by now."""
        self._in_step = True
        self._by_move.clear()
        stall = self._lives.bury(self._agenda.passing)
        self._send(demoting=True)
        stall += self._lives.bear_each([b for b in self._agenda.wrapping if not self._table.held[b]])
        self._send(demoting=False)  # births go before promotions
        self._submit(self._agenda.crossing, 0)
        return stall

    def _send(self, *, demoting: bool) -> None:
        """Blocks that are elsewhere than they should be in layer 0 are sent there, out of fast memory or into it."""
        for block, wanted in self._agenda.wanted.items():
            here = self._table.tier[block]
            if not self._table.held[block] or self._flights.of(block) or here == wanted:
                continue
            if (wanted != 0) == demoting:
                reason: Reason = "evict" if demoting else "prefetch"
                self._flights.submit(block, here, wanted, reason, self._rows.step, 0)
                self._ledger.totals.sent_back += 1

    # ---- the end ----------------------------------------------------------------------------------------

    def _finish_flights(self) -> None:
        for flight in self._flights.all():
            if not self._mover.wait(flight.job):
                self._mover.cancel(flight.job)
        self._flights.collect()

    def _count_accounts(self) -> None:
        if self._inert:
            return
        totals = self._ledger.totals
        totals.overflow_bytes = self._mover.held().overflow_bytes
        totals.injected_ns = self._rows.injected_ns
        totals.stayed = self._mover.errors()


def _require_fit(plan: Plan, machine: Machine) -> None:
    if len(plan.tier_names) != len(machine.tiers):
        raise UsageError(
            f"the plan has {len(plan.tier_names)} tiers, machine {machine.name} has {len(machine.tiers)}",
            "plan for this machine",
        )
    if len(machine.tiers) > MOST_TIERS:
        raise UsageError(
            f"machine {machine.name} has {len(machine.tiers)} tiers, and plans are applied to {MOST_TIERS} at most",
            "leave out those that are used least",
        )
    for move in plan.migrations:
        if move.source and move.target:
            raise UsageError(
                f"block {move.block} moves between two slow tiers", "plan moves to or from the fast tier only"
            )


def _quieten() -> None:
    """In a forked child no mover runs: whatever ticks there must not wait for one."""
    for engine in _engines:
        engine._forked = True


os.register_at_fork(after_in_child=_quieten)
