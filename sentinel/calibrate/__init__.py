"""What this host's memory does: measured bandwidths, latencies and migrations, and the Machine that they make."""

from __future__ import annotations

from sentinel.calibrate.figures import Calibration, Figure, MoveFigures, NodeFigures
from sentinel.calibrate.machines import machine_of
from sentinel.calibrate.order import Order, order
from sentinel.calibrate.run import calibrate

__all__ = ["Calibration", "Figure", "MoveFigures", "NodeFigures", "Order", "calibrate", "machine_of", "order"]
