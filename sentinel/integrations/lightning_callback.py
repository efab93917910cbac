"""LightningCallback: `Trainer.fit()` of Lightning under Sentinel."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any, Unpack

from sentinel.session.placing import Options, Placing
from sentinel.session.request import Request

# Lightning comes as two packages, with a Callback each: the one that the program has imported is meant.
if "lightning.pytorch" in sys.modules or ("pytorch_lightning" not in sys.modules and find_spec("lightning")):
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback


class LightningCallback(Callback):  # type: ignore[misc]  # of a library without types here
    """Places what `fit()` computes, from its first training step to its end, also by an exception; validations after
    the first step are part of that.

    The arguments are those of `sentinel.placing`.
    """

    def __init__(self, *, report: str | os.PathLike[str] | None = None, **options: Unpack[Options]) -> None:
        super().__init__()
        self._placing = Placing(Request(**options), report)

    def on_train_start(self, *_: Any) -> None:
        """The loop is about to begin."""
        self._placing.begin()

    def on_train_end(self, *_: Any) -> None:
        """The last step is done."""
        self._placing.end()

    def on_exception(self, *_: Any) -> None:
        """An error or an interrupt ends it."""
        self._placing.end(failed=True)
