"""Training data in a room of memory: which chunk is read when, and which samples stay. Pure: no clock, no file, no
chance.

(Layout, Order, Room) -plan-> Staging -simulate, or the reader of sentinel.data-> Feed.
"""

from __future__ import annotations

from sentinel.samples.arena_pages import ArenaPages
from sentinel.samples.epoch_plan import Begun, Epoch, epochs_ahead, plan, simulate
from sentinel.samples.feed import Feed
from sentinel.samples.importance import Importance, OfOthers, Selection, chances, narrowed, select, stage_selected
from sentinel.samples.joined_ranges import JoinedRanges
from sentinel.samples.layout import Layout
from sentinel.samples.order import KINDS, Order
from sentinel.samples.reading_unit import ALONE, WHOLE, best_unit, unit_costs
from sentinel.samples.room import Room
from sentinel.samples.shuffle_quality import NEIGHBOURS, ShuffleQuality, neighbourhoods, shuffle_quality
from sentinel.samples.source_costs import SourceCosts
from sentinel.samples.staging import BEFORE, DIRECT, Staging
from sentinel.samples.steady_reads import part_of, staging_ns, steady_feed
from sentinel.samples.world_plan import PLANS_VERSION, RankShare, WorldPlan, plan_world

__all__ = [
    "ALONE",
    "BEFORE",
    "DIRECT",
    "KINDS",
    "NEIGHBOURS",
    "PLANS_VERSION",
    "WHOLE",
    "ArenaPages",
    "Begun",
    "Epoch",
    "Feed",
    "Importance",
    "JoinedRanges",
    "Layout",
    "OfOthers",
    "Order",
    "RankShare",
    "Room",
    "Selection",
    "ShuffleQuality",
    "SourceCosts",
    "Staging",
    "WorldPlan",
    "best_unit",
    "chances",
    "epochs_ahead",
    "narrowed",
    "neighbourhoods",
    "part_of",
    "plan",
    "plan_world",
    "select",
    "shuffle_quality",
    "simulate",
    "stage_selected",
    "staging_ns",
    "steady_feed",
    "unit_costs",
]
