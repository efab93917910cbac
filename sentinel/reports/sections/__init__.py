"""SECTIONS: the parts of a session's report, in the order in which they are read.

A new part is a file here that ends in a Section, and an entry in SECTIONS: text, page, `frames()`, JSON and CSV have
it then.
"""

from sentinel.reports.facts import Facts
from sentinel.reports.section import Section
from sentinel.reports.sections.false_sharing_table import FALSE_SHARING
from sentinel.reports.sections.footprint import FOOTPRINT, OCCUPANCY
from sentinel.reports.sections.key_figures import KEY_FIGURES
from sentinel.reports.sections.layer_times import LAYER_TIMES
from sentinel.reports.sections.migrations import MIGRATIONS, TIMELINE
from sentinel.reports.sections.more_fast_memory import MORE_FAST_MEMORY
from sentinel.reports.sections.move_errors import MOVE_ERRORS
from sentinel.reports.sections.moved_tensors import MOVED_TENSORS
from sentinel.reports.sections.origin import ORIGIN
from sentinel.reports.sections.page_range_table import PAGE_RANGES
from sentinel.reports.sections.pin_table import PINS
from sentinel.reports.sections.shape_table import SHAPES
from sentinel.reports.sections.slow_tensors import SLOW_TENSORS
from sentinel.reports.sections.step_time import STEP_TIME
from sentinel.reports.sections.steps_and_blocks import BLOCKS, STEPS
from sentinel.reports.sections.storage_table import STORAGE
from sentinel.reports.sections.tensor_tables import ACCESSES, HEAT, TENSORS
from sentinel.reports.sections.unmanaged_tables import IN_PLACE, UNMANAGED
from sentinel.reports.sections.witness_table import WITNESS

SECTIONS: tuple[Section[Facts], ...] = (
    STEP_TIME,
    SLOW_TENSORS,
    MOVED_TENSORS,
    MORE_FAST_MEMORY,
    KEY_FIGURES,
    STORAGE,
    FOOTPRINT,
    OCCUPANCY,
    TIMELINE,
    LAYER_TIMES,
    HEAT,
    MIGRATIONS,
    WITNESS,
    MOVE_ERRORS,
    TENSORS,
    ACCESSES,
    PAGE_RANGES,
    PINS,
    FALSE_SHARING,
    SHAPES,
    IN_PLACE,
    UNMANAGED,
    STEPS,
    BLOCKS,
    ORIGIN,
)
