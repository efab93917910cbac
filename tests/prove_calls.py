"""What tests have the processes of a proof do."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from sentinel.core.errors import Infeasible


def answer(order: Any) -> dict[str, Any]:
    """Says so, too."""
    print("asked for", order, flush=True)
    return {"order": order, "process": os.getpid()}


def fail(_order: Any) -> dict[str, Any]:
    """An error of ours that names what is wrong."""
    raise ValueError("the dog ate it")


def refuse(_order: Any) -> dict[str, Any]:
    """No plan is a result."""
    raise Infeasible(2, 1, 0)


def vanish(_order: Any) -> dict[str, Any]:
    """As where memory runs out."""
    print("last words", flush=True)
    os.abort()


def hang(order: str) -> dict[str, Any]:
    """Until it is asked to end; then it puts back what it changed."""
    path = Path(order)
    path.write_text("changed")
    try:
        time.sleep(600)
    finally:
        path.write_text("put back")
    return {}
