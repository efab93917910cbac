"""TrainerCallback: `Trainer.train()` of transformers under Sentinel."""

from __future__ import annotations

import os
from typing import Any, Unpack

import transformers

from sentinel.session.placing import Options, Placing
from sentinel.session.request import Request


class TrainerCallback(transformers.TrainerCallback):  # type: ignore[misc]  # of a library without types here
    """Places what `train()` computes, from its beginning to its end; evaluations within it are part of that.

    The arguments are those of `sentinel.placing`. Where an exception ends `train()`, transformers tells nobody: the
    session ends with `sentinel.stop()`, with the next `train()`, or with the program.
    """

    def __init__(self, *, report: str | os.PathLike[str] | None = None, **options: Unpack[Options]) -> None:
        self._placing = Placing(Request(**options), report)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The loop is about to begin."""
        self._placing.begin()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The last step is done, and the best model is loaded."""
        self._placing.end()
