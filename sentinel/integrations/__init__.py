"""Callbacks for loops that a library runs: `TrainerCallback` for transformers, `LightningCallback` for Lightning.

    import sentinel

    trainer = transformers.Trainer(model, arguments, callbacks=[sentinel.integrations.TrainerCallback(fast="20%")])
    trainer = lightning.Trainer(callbacks=[sentinel.integrations.LightningCallback(fast="20%")])

Their arguments are those of `sentinel.placing`. Loops of accelerate need only `sentinel.placing` itself. Each library
is imported when its callback is first used; if it is missing, CapabilityError says how to install it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sentinel.core.errors import CapabilityError

if TYPE_CHECKING:
    from sentinel.integrations.lightning_callback import LightningCallback as LightningCallback
    from sentinel.integrations.trainer_callback import TrainerCallback as TrainerCallback

_LAZY = {
    "LightningCallback": ("lightning_callback", "Lightning", "lightning"),
    "TrainerCallback": ("trainer_callback", "transformers", "'transformers[torch]'"),
}
"""Class -> its module, the library, and what pip installs it by."""


def __getattr__(name: str) -> Any:
    """The callbacks, imported when first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, library, package = _LAZY[name]
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ImportError as error:
        raise CapabilityError(
            f"the callback for {library}", f"it cannot be imported ({error})", f"pip install {package}"
        ) from error


def __dir__() -> list[str]:
    """With what is imported when first used."""
    return sorted({*globals(), *_LAZY})
