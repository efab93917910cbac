"""What this host's memory does: measured bandwidths, latencies and migrations, and the Machine that they make."""

from __future__ import annotations

from sentinel.calibrate.machines import copies_of, machine_of
from sentinel.calibrate.measure import calibrate
from sentinel.calibrate.measurement_plan import MeasurementPlan, plan_measurements
from sentinel.calibrate.moving import as_copied_here, with_moving
from sentinel.calibrate.results import Calibration, Figure, MoveFigures, MovingFigures, NodeFigures

__all__ = [
    "Calibration",
    "Figure",
    "MeasurementPlan",
    "MoveFigures",
    "MovingFigures",
    "NodeFigures",
    "as_copied_here",
    "calibrate",
    "copies_of",
    "machine_of",
    "plan_measurements",
    "with_moving",
]
