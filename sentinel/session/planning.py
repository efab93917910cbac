"""Planning: from a recorded step to a plan within the budget, and to a better one once layer times are known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from sentinel import files
from sentinel.core.attribution import attribute
from sentinel.core.budget import Budget, budget_within
from sentinel.core.errors import PlanError, UsageError
from sentinel.core.machine import Machine
from sentinel.core.pins import Pins, pins_of, too_large
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.trace import Trace
from sentinel.core.units import Amount, format_bytes, parse_fast
from sentinel.migration.rates import with_rates
from sentinel.planner import bound, check_policies
from sentinel.planner import footprint_bytes as footprint_of
from sentinel.planner.make_plan import MadePlan, PlanOrder
from sentinel.runtime import tell
from sentinel.session.request import Request
from sentinel.simulator import plain_layer_ns, simulate_lawful
from sentinel.system.launched import launched
from sentinel.system.node_share import NodeShare
from sentinel.system.planning_process import PlanningLost, PlanningProcess
from sentinel.system.progress import say, telling

REFINE_GAIN = 0.98
"""A plan made again with executed layer times is applied if it is predicted to take at most this share of the present
one's step."""
BOUND_SECONDS = 10.0
"""A report waits at most so long for the bound."""


@dataclass(frozen=True)
class Dataflow:
    """One way that the step runs, as far as it is known: recorded, digested, planned. A saved plan has neither trace
    nor profile. `budget`: of fast memory, for `plan`; `simulated` is the run of `plan` on `machine`.
    `footprint_bytes`: of the profile, if it was planned for. `loose`: why the bound of `plan` is loose, or "".
    """

    trace: Trace | None = None
    profile: Profile | None = None
    machine: Machine | None = None
    budget: Budget | None = None
    plan: Plan | None = None
    simulated: Run | None = None
    footprint_bytes: int = 0
    loose: str = ""


class PendingPlan:
    """A plan that another process makes from `start` on. `then`: what becomes of it, here."""

    def __init__(self, then: Callable[[MadePlan], Dataflow]) -> None:
        self._then = then
        self._process: PlanningProcess | None = None
        self._flow: Dataflow | None = None
        self.lost = False

    @classmethod
    def of(cls, flow: Dataflow) -> PendingPlan:
        """One that is made already."""
        pending = cls(lambda _: flow)
        pending._flow = flow
        return pending

    def start(self, order: PlanOrder) -> None:
        """Raises OSError where no process can be made."""
        self._process = PlanningProcess(order)

    @property
    def awaited(self) -> bool:
        """Whether there is a process, and nobody has had its plan."""
        return self._process is not None

    def flow(self) -> Dataflow | None:
        """The dataflow with its plan; None as long as that is being made. Raises PlanError, once, if none can be;
        `lost`: because the process is gone."""
        process = self._process
        if process is None:
            return self._flow
        try:
            made = process.made()
        except PlanError as error:
            self._process, self.lost = None, isinstance(error, PlanningLost)
            raise
        if made is not None:
            self._process, self._flow = None, self._then(made)
        return self._flow

    def cancel(self) -> None:
        """Nobody wants it any more. May be called again."""
        if self._process is not None:
            self._process.cancel()
            self._process = None


class Refined(NamedTuple):
    """`kept`: a dataflow with the plan that it has, and executed layer times; `pending`: another plan for these."""

    kept: Dataflow
    pending: PendingPlan

    def is_better(self, flow: Dataflow) -> bool:
        """Whether that plan, which is `flow`'s, is worth the change."""
        assert self.kept.simulated is not None
        assert self.kept.budget is not None
        assert flow.simulated is not None
        assert flow.budget is not None
        faster = (flow.simulated.step_ns or 0) < REFINE_GAIN * (self.kept.simulated.step_ns or 0)
        return faster or flow.budget.fast_bytes > self.kept.budget.fast_bytes


class Planning:
    """Plans by the policy and within the budget of `request`, on `machine`.

    `available_bytes`: of the fast tier, for this job; what it holds there counts, for its plans may place that.
    `pins()`: what is to be kept fast or slow, asked for each plan. `beside()`: bytes of the fast tier that the process
    holds beside its tensors, as a loader may; they come off what was asked for, and count in `available_bytes`.
    `spent_ns`: time that planning has taken so far. Raises UsageError where the request's `fast` is no amount.
    """

    def __init__(
        self,
        request: Request,
        machine: Machine,
        available_bytes: int,
        pins: Callable[[], Pins] | None = None,
        beside: Callable[[], int] = lambda: 0,
    ) -> None:
        self._request, self._machine = request, machine
        self._asked = None if request.fast is None else parse_fast(request.fast)
        self._pins = pins or (lambda: request.pins)
        self._beside, self._taken_off = beside, 0
        self._saved_pins = Pins()
        self._said: list[str] = []
        self._available_bytes = available_bytes
        self._shared = NodeShare(self._asked.nbytes) if self._asked is not None and self._asked.per_node else None
        self.pending: list[PendingPlan] = []  # some may have been taken by now
        self._lost_one = False  # a process that planned: no other one is relied upon
        self.spent_ns = 0

    def check_words(self) -> None:
        """Raises UsageError for whatever can be known to be wrong before anything is changed."""
        check_policies([self._request.policy])
        budget = self._whole(footprint_bytes=0, known=False)  # what a share comes to, only the footprint tells
        if budget.capped:
            raise UsageError(budget.capped, "ask for less")
        taken = self._beside()
        if taken > budget.fast_bytes and (self._asked is None or self._asked.share is None):
            raise UsageError(
                _taken_by_loaders(taken, budget), 'ask for more fast memory, or give the loader where="slow"'
            )

    def check_kept_fast(self, kept: Mapping[str, int]) -> None:
        """Raises UsageError where what is to be kept fast, in bytes by name, exceeds a budget that is known already."""
        if not kept or (self._asked is not None and self._asked.share is not None):
            return
        budget = self._budget(footprint_bytes=0, known=False)
        if sum(kept.values()) > budget.fast_bytes:
            named = [f"{name} ({format_bytes(kept[name])})" for name in sorted(kept, key=lambda name: -kept[name])]
            raise UsageError(
                too_large(sum(kept.values()), budget.fast_bytes, named), "keep less fast, or ask for more fast memory"
            )

    def profiled(self, trace: Trace, *, provisional: bool) -> Dataflow:
        """The digest of a recorded step. `provisional`: the steps to come will differ."""
        profile = replace(attribute(trace), provisional=provisional)
        profile = files.with_origin(profile, trace=trace)
        tell(lambda each: each.profile_made(profile))
        return Dataflow(trace=trace, profile=profile)

    def outdated(self, flow: Dataflow, beside: Iterable[Dataflow]) -> bool:
        """Whether `flow` was planned for another budget than there is now that these are `beside` it."""
        assert flow.budget is not None
        return self._budget(_largest(flow.footprint_bytes, beside)).fast_bytes != flow.budget.fast_bytes

    def planned(self, flow: Dataflow, beside: Iterable[Dataflow] = ()) -> Dataflow:
        """A plan for a profiled dataflow, within what fast memory this host has. `beside`: the others that are planned
        for, all of which have the budget of the largest."""
        wanted = self._wanted(flow, beside)
        return self._completed(wanted, self._made(self._order(wanted)))

    def begin(self, flow: Dataflow, beside: Iterable[Dataflow] = ()) -> PendingPlan:
        """The same, made in another process where this one has others beside it, which would wait for it."""
        return self._begin(self._wanted(flow, beside))

    def close(self) -> None:
        """Nobody wants plans any more that are being made. May be called again."""
        while self.pending:
            self.pending[-1].cancel()
            self.pending.pop()

    def saved(self, plan: Plan) -> Dataflow:
        """The dataflow of a saved plan, held to the budget that is asked for."""
        if self._asked is not None:
            whole = self._amount(self._asked, plan.footprint_bytes, known=True).of(plan.footprint_bytes)
            asked = self._less_taken(Budget(whole)).fast_bytes
            if plan.fast_peak_bytes > asked:
                raise UsageError(
                    f"the saved plan holds up to {format_bytes(plan.fast_peak_bytes)} of fast memory,"
                    f" fast={self._request.fast!r} allows {format_bytes(asked)}",
                    "ask for more, or profile again without plan=",
                )
            plan = replace(plan, capacity_bytes=(min(asked, plan.capacity_bytes[0]), *plan.capacity_bytes[1:]))
        if len(plan.tier_names) != len(self._machine.tiers):
            there = len(self._machine.tiers)
            raise PlanError(f"the plan is for {len(plan.tier_names)} tiers, this machine has {there}")
        return Dataflow(machine=self._machine, budget=Budget(plan.capacity_bytes[0]), plan=plan)

    def keep_budget_of(self, plan: Plan) -> str:
        """From now on plans are made within the bytes of a saved one, unless an amount was asked for. Says so."""
        if self._asked is None:
            self._asked = Amount(format_bytes(plan.capacity_bytes[0]), plan.capacity_bytes[0] + self._beside())
            return f", within the {self._asked.text} of fast memory that it was for"
        return ""

    def keep_pins_of(self, plan: Plan) -> None:
        """From now on plans keep what a saved one keeps, beside what is asked for."""
        self._saved_pins = pins_of(plan.details)

    def retimed(self, flow: Dataflow, executed: Run) -> Dataflow:
        """The dataflow with the layer times of `executed`, and its plan simulated with them; itself without any."""
        plan, machine, profile = flow.plan, flow.machine, flow.profile
        if plan is None or machine is None or profile is None:
            return flow
        layer_ns = plain_layer_ns(executed, profile.n_layers, machine)
        if layer_ns is None:
            return flow
        profile = replace(profile, layer_ns=layer_ns, step_ns_plain=int(layer_ns.sum()))
        plan = files.with_origin(replace(plan, bound_step_ns=None), profile=profile, machine=machine)
        simulated = simulate_lawful(plan, profile, machine, steps=2)
        return replace(flow, profile=profile, plan=plan, simulated=simulated, loose="")

    def refined(self, flow: Dataflow, executed: Run) -> Refined | None:
        """The dataflow with the layer times of `executed`, and the plan that is made for these; None without any.

        Links that neither the user nor a calibration gave are as fast as its migrations were, for later plans too; so
        are emulated ones that this host cannot keep up with.
        """
        began, seen = time.perf_counter_ns(), flow
        if self._request.machine is None and flow.machine is not None:
            self._machine = with_rates(self._machine, executed)
            seen = replace(flow, machine=self._machine)
        kept = self.retimed(seen, executed)
        self.spent_ns += time.perf_counter_ns() - began
        if kept is seen or kept.budget is None:
            return None
        # by now the other processes of the node have told what they need, and may leave more
        budget = kept.budget if self._shared is None else self._budget(kept.footprint_bytes)
        return Refined(kept, self._begin(replace(kept, budget=budget, plan=None, simulated=None)))

    def bounded(self, flow: Dataflow) -> Dataflow:
        """The dataflow with the bound that no plan of it can pass, found once a plan."""
        plan, profile, machine = flow.plan, flow.profile, flow.machine
        if plan is None or profile is None or machine is None or flow.budget is None or plan.bound_step_ns is not None:
            return flow
        with telling(f"looking for the bound, for at most {BOUND_SECONDS:.0f} s"):
            pins = pins_of(plan.details)
            until = time.monotonic() + BOUND_SECONDS
            found = bound(
                profile,
                flow.budget.reach(machine),
                time_limit_s=BOUND_SECONDS,
                pins=pins,
                left_s=lambda: until - time.monotonic(),
            )
        return replace(flow, plan=replace(plan, bound_step_ns=int(found.step_ns)), loose=found.loose)

    def _wanted(self, flow: Dataflow, beside: Iterable[Dataflow]) -> Dataflow:
        """A profiled dataflow with all that its plan is made for."""
        assert flow.profile is not None
        footprint_bytes = footprint_of(flow.profile)
        budget = self._budget(_largest(footprint_bytes, beside), known=not flow.profile.provisional)
        return Dataflow(flow.trace, flow.profile, self._machine, budget, footprint_bytes=footprint_bytes)

    def _begin(self, wanted: Dataflow) -> PendingPlan:
        order = self._order(wanted)
        self._lost_one = self._lost_one or any(each.lost for each in self.pending)
        self.pending = [each for each in self.pending if each.awaited]
        if launched().size > 1 and not self._lost_one:
            pending = PendingPlan(partial(self._completed, wanted))
            self.pending.append(pending)
            try:
                pending.start(order)
            except OSError:  # no process can be made: the others have to wait
                self.pending.pop()
            else:
                return pending
        return PendingPlan.of(self._completed(wanted, self._made(order)))

    def _made(self, order: PlanOrder) -> MadePlan:
        began = time.perf_counter_ns()
        with telling(f"planning {len(order.profile.names)} tensors over {order.profile.n_layers} layers"):
            made = order.made()
        self.spent_ns += time.perf_counter_ns() - began
        return made

    def _completed(self, wanted: Dataflow, made: MadePlan) -> Dataflow:
        """`wanted` with its plan, once that is made."""
        assert wanted.profile is not None
        assert wanted.machine is not None
        for sentence in made.left_out:
            self._note(sentence)
        plan = made.plan.told(provisional=wanted.profile.provisional)
        plan = files.with_origin(plan, profile=wanted.profile, machine=wanted.machine)
        tell(lambda each: each.plan_made(plan))
        return replace(wanted, plan=plan, simulated=made.simulated)

    def _order(self, wanted: Dataflow) -> PlanOrder:
        """With those pins that name something. Others cost a sentence, never the plan: a job is training."""
        profile, machine, budget = wanted.profile, wanted.machine, wanted.budget
        assert profile is not None
        assert machine is not None
        assert budget is not None
        now, saved = self._pins(), self._saved_pins
        pins = now.with_names(
            (name for name in saved.fast if name not in now.slow), (name for name in saved.slow if name not in now.fast)
        )
        for pattern in pins.idle(profile):
            missing = "matches no parameter, buffer or optimizer state that can be placed"
            self._note(f"keep_fast or keep_slow: {pattern!r} {missing}")
        self._note(pins.overruled(profile))
        return PlanOrder(profile, machine, self._request.policy, budget, pins)

    def _note(self, sentence: str) -> None:
        """Said once, and in the report; nothing where there is nothing to say."""
        if sentence and sentence not in self._said:
            self._said.append(sentence)
            say(sentence, wrong=True)

    def _budget(self, footprint_bytes: int, *, known: bool = True) -> Budget:
        """Of `_whole`, what tensors may have beside what loaders hold of fast memory."""
        return self._less_taken(self._whole(footprint_bytes, known=known))

    def _less_taken(self, whole: Budget) -> Budget:
        self._taken_off = taken = self._beside()
        if taken <= whole.fast_bytes:
            return replace(whole, fast_bytes=whole.fast_bytes - taken)
        return Budget(0, _taken_by_loaders(taken, whole))

    def _whole(self, footprint_bytes: int, *, known: bool = True) -> Budget:
        """What was asked for, of what this host has; a share is one of `footprint_bytes`. Not `known`: the steps to
        come have another footprint, so nothing is said of it to other processes.

        A described machine has as much fast memory as is asked for.
        """
        fast = self._machine.fast
        if self._asked is None:
            whole = Budget(self._available_bytes)
            return whole if fast.kind != "node" or launched().local_size < 2 else whole.share_of(launched().local_size)
        asked = self._amount(self._asked, footprint_bytes, known=known)
        if fast.kind != "node":
            return Budget(asked.of(footprint_bytes))
        return budget_within(self._available_bytes, asked, footprint_bytes, fast.name)

    def _amount(self, asked: Amount, footprint_bytes: int, *, known: bool) -> Amount:
        """Of an amount for the node, this process's part."""
        if self._shared is None:
            return asked
        return replace(asked, nbytes=self._shared.of_need(footprint_bytes) if known else self._shared.nbytes)

    def notes(self) -> list[str]:
        """What a report must say of pins, of what loaders hold, and of a budget that several processes share."""
        said = list(self._said)
        if self._taken_off:
            said.append(f"Loaders hold {format_bytes(self._taken_off)} of fast memory, so tensors have that much less.")
        if (since := self._beside() - self._taken_off) > 0:
            what = f"A loader that was made after the plan holds {format_bytes(since)} of fast memory on top of it"
            said.append(f"{what}: make loaders before start_profile().")
        if self._shared is None or self._shared.who.local_size < 2:
            return said
        shared = self._shared
        part = f"{format_bytes(shared.nbytes)} of the {format_bytes(shared.total_bytes)} of fast memory"
        told = f"This process has {part} that {shared.who.local_size} processes on this node share"
        return [
            *said,
            f"{told} equally: nothing is known of the others ({shared.alone})" if shared.alone else f"{told} by need",
        ]


def _taken_by_loaders(taken: int, whole: Budget) -> str:
    there = f"{format_bytes(whole.fast_bytes)} of fast memory are there for this job"
    return f"{there}, and loaders hold {format_bytes(taken)} of it"


def _largest(footprint_bytes: int, beside: Iterable[Dataflow]) -> int:
    return max(footprint_bytes, *(flow.footprint_bytes for flow in beside), 0)
