"""ImportanceLoader: epochs of the samples that the model still gets wrong, by the losses that training reports."""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from sentinel.core.errors import UsageError
from sentinel.core.rules import holding, require
from sentinel.data.batching import Batching
from sentinel.data.data_index import DataFiles
from sentinel.data.feeding import EpochOrder, FileFeeding, permutation
from sentinel.data.loading import Loader
from sentinel.data.ranks import check_joined, of_all_ranks
from sentinel.data.room_here import lead_for, unit_within
from sentinel.data.sample_arena import ArenaShape
from sentinel.data.selecting_jobs import FromSelectingJobs, SelectingJobs
from sentinel.data.share_names import SHARE_VERSION, ShareName, identity_of
from sentinel.samples import (
    DIRECT,
    Begun,
    Feed,
    Importance,
    Layout,
    Order,
    Selection,
    Staging,
    chances,
    narrowed,
    neighbourhoods,
    select,
    stage_selected,
)
from sentinel.tiers.arena_place import ArenaPlace

__all__ = ["Importance", "ImportanceLoader", "selecting"]

KIND = "importance"
"""The order of a state of such a loader."""
NO_LOSSES = "no losses were reported, so all samples are delivered: call loader.report_losses(losses) after each batch"


class ImportanceFeeding(FileFeeding):
    """Samples of files, selected by the losses in `losses`."""

    def __init__(
        self,
        data: DataFiles,
        layout: Layout,
        shape: ArenaShape,
        lead: int,
        importance: Importance,
        place: ArenaPlace,
        share: ShareName | None,
    ) -> None:
        """As FileFeeding. `share`: the name of jobs that hold samples together."""
        super().__init__(data, layout, shape, lead, place=place)
        self.importance = importance
        self._jobs: SelectingJobs | None = None
        self._resumed = self._given = False
        """Whether of the iteration that was begun last only the end is delivered, and other jobs give some of it."""
        if share is not None:
            self._jobs = SelectingJobs(share, self._arena)
            weakref.finalize(self, share.close)
            self.samples = replace(self.samples, source=FromSelectingJobs(self._files, self._arena, data.source))
        self._neighbours = neighbourhoods(data.layout)
        """Of which substitutes are taken, whatever the memory is."""
        self.losses = np.full((2, layout.n_samples), np.nan, np.float16)
        """(2, n_samples): the last loss of each as the epoch began, by which it selects, and as it is now."""
        self.chosen: Selection | None = None
        """What this rank delivers in the iteration that was begun last."""
        self.substituted = 0
        self._following: NDArray[np.int64] | None = None

    def selection(self, order: Order, epoch: int, losses: NDArray[np.float16]) -> Selection:
        """What all ranks deliver in an epoch that begins with `losses`."""
        of_all = permutation(self.samples.n, order, epoch)
        return select(self._neighbours, self.importance, epoch, order.epoch_seed(epoch), of_all, losses)

    def _planned(self, order: Order, epoch: int, begun: Begun | None, before: Staging | None) -> Staging:
        self._exchange(order, begun is None)
        whole = self.selection(order, epoch, self.losses[0])
        at = order.of_rank(np.arange(len(whole.samples)), 0 if begun is None else begun.delivered)
        self.chosen = chosen = whole.of(at)
        if before is not None and self._following is not None:
            before = narrowed(before, self._following, chosen.samples)
        # a rank cannot know which of the next epoch's samples are its own, nor which will be substitutes
        known = order.world == 1 and not self.importance.substitute
        self._following = permutation(self.samples.n, order, epoch + 1) if known else None
        if self._jobs is None:
            worth, others = self.losses[0], None
            return stage_selected(self._layout, self.samples.room, chosen.samples, worth, self._following, before)
        chance = chances(self.losses[0], self.importance.beta)
        kept = np.zeros(0, np.int64) if before is None else before.stay_sample[before.kept]
        worth, others = self._jobs.look(chance, kept, whole=before is not None and not self._resumed)
        staging = stage_selected(self._layout, self.samples.room, chosen.samples, worth, None, before, others)
        self._jobs.tell(chance, staging)
        self._resumed, self._given = begun is not None, bool((staging.stay_at == DIRECT).any())
        return staging

    def predicted(self) -> Feed | None:
        """As FileFeeding; None where other jobs give some of it."""
        return None if self._given else super().predicted()

    def _exchange(self, order: Order, begins: bool) -> None:
        """Where an epoch begins, all ranks have the losses that any of them was told."""
        then, now = self.losses.view(np.uint16)  # compared as bits, for NaN
        mine = np.flatnonzero(then != now)
        selects_by = (self.importance, zlib.crc32(then.tobytes()))
        told = of_all_ranks(order.world, (selects_by, mine, self.losses[1, mine]))
        for rank, (theirs, samples, losses) in enumerate(told):
            if theirs != told[0][0]:
                raise UsageError(
                    f"rank {rank} selects by other losses or another Importance than rank 0",
                    "give all ranks the same Importance, and states of one step",
                )
            if begins:
                self.losses[1, samples] = losses
        if begins:
            self.losses[0] = self.losses[1]

    def _others(self) -> list[str]:
        """No other order selects."""
        return []

    def caveats(self) -> list[str]:
        """Sentences to read before the counts."""
        of_jobs = "" if self._jobs is None else self._jobs.said
        substituted = f"{self.substituted} samples were delivered in place of those that were drawn"
        told = (self.importance.substitute, substituted), (np.isnan(self.losses[1]).all(), NO_LOSSES)
        return holding(*told, (of_jobs, of_jobs)) + super().caveats()


class ImportanceLoader(Loader):
    """Made by `sentinel.data.loader` with `order=Importance(...)`. Each iteration over it is an epoch. For one thread.

    Call `report_losses` after each batch, with the loss of each of its samples.
    """

    def __init__(
        self, feeding: ImportanceFeeding, order: Order, batching: Batching, unit: int, ranks_given: bool
    ) -> None:
        super().__init__(feeding, order, batching, unit, ranks_given)
        self._selecting = feeding
        self._last: Selection | None = None
        check_joined(order.world)

    def _deliver(self, iteration: int, planned: EpochOrder) -> Iterator[Any]:
        self._last, done = None, 0
        for batch in super()._deliver(iteration, planned):
            chosen = self._selecting.chosen
            assert chosen is not None
            self._last = chosen.of(np.arange(done, self._delivered))
            done = self._delivered
            self._selecting.substituted += int(self._last.substituted.sum())
            yield batch

    def report_losses(self, losses: ArrayLike | torch.Tensor) -> None:
        """`losses`: (k,) the loss of each of the k samples of the batch that was delivered last, in its order.

        Kept as float16. Raises UsageError before the first batch, and for another number of losses.
        """
        if self._last is None:
            raise UsageError("no batch was delivered in this iteration", "report losses after each batch")
        if isinstance(losses, torch.Tensor):
            losses = losses.detach().float().cpu().numpy()
        try:
            given, samples = np.asarray(losses, np.float32), self._last.samples
        except (ValueError, TypeError) as error:
            raise UsageError("the losses are no numbers", "give one for each sample of the batch") from error
        if given.shape != samples.shape:
            raise UsageError(
                f"losses of shape {given.shape} for a batch of {len(samples)} samples",
                "give one for each sample, as with reduction='none'",
            )
        with np.errstate(over="ignore"):
            self._selecting.losses[1, samples] = given.astype(np.float16)

    @property
    def weights(self) -> torch.Tensor:
        """(k,) float32, 1 / probability of each sample of the batch that was delivered last, to multiply its loss with;
        ones without `unbiased`."""
        if self._last is None:
            raise UsageError("no batch was delivered in this iteration", "ask for weights after each batch")
        return torch.from_numpy(self._last.weights.astype(np.float32))

    def __len__(self) -> int:
        """Batches of the epoch from its begin; of one that has not begun, by the losses that are known now."""
        feeding, batching = self._selecting, self._batching
        losses = feeding.losses[0 if self._delivered or self._base is not None else 1]
        whole = self._order.per_rank(len(feeding.selection(self._order, self._epoch, losses).samples))
        return whole // batching.batch_size if batching.drop_last else math.ceil(whole / batching.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Where training is, and 4 bytes a sample: `losses`, (2, n_samples) float16 of torch. Each of several ranks has
        a state of its own, for it was told of its own samples only."""
        losses = torch.from_numpy(self._selecting.losses.copy())
        return {**super().state_dict(), "order": KIND, KIND: asdict(self._selecting.importance), "losses": losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As Loader's. Raises UsageError also for the state of another Importance."""
        mine = asdict(self._selecting.importance)
        told: NDArray[np.float16] | None = None
        if isinstance(state, dict):
            order, theirs, losses = state.get("order"), state.get(KIND), state.get("losses")
            require(
                (order != KIND, f"the state is of order={order!r}", "make a loader of this order"),
                (theirs != mine, f"the state is of {theirs}, the loader has {mine}", "give both the same"),
            )
            if not isinstance(losses, torch.Tensor) or losses.shape != self._selecting.losses.shape:
                raise UsageError("the losses of the state are damaged", "give what state_dict() returned")
            told = losses.detach().cpu().to(torch.float16).numpy()
            state = {**state, "order": self._order.kind}
        super().load_state_dict(state)
        assert told is not None
        self._selecting.losses[:] = told


def selecting(
    data: DataFiles,
    shape: ArenaShape,
    importance: Importance,
    order: Order,
    batching: Batching,
    unit: int,
    place: ArenaPlace,
    ranks_given: bool,
    share: str | None,
) -> ImportanceLoader:
    """A loader of `data`, of which it reads `unit` samples at once, or fewer where the memory is little."""
    layout = data.layout
    if not layout.encoded:
        unit = unit_within(layout, shape, unit)
        layout = layout.cut(unit)
    lead, name = lead_for(data.layout, shape), None
    if share is not None:
        require(
            (
                order.world > 1,
                f"share={share!r} with Importance is for jobs of one rank, this one has {order.world}",
                "leave share= out",
            ),
            (
                layout.n_chunks < layout.n_samples,
                f"share={share!r} with Importance needs samples that are read one by one",
                "give unit=1 and files that are not decoded in chunks, or leave share= out",
            ),
        )
        reads = {"order": KIND, "memory": [shape.n_pages, shape.page_bytes, lead], "version": SHARE_VERSION}
        name = ShareName(share, identity_of(data), reads)
    feeding = ImportanceFeeding(data, layout, shape, lead, importance, place, name)
    return ImportanceLoader(feeding, order, batching, unit, ranks_given)
