"""SpentGradient: what `.grad` holds of a parameter that has taken its update in backward."""

from __future__ import annotations

from typing import Any

import torch

from sentinel.core.errors import UsageError

WITHOUT = "train without overlap_optimizer"


class SpentGradient(torch.Tensor):
    """Of the size and type of its parameter, without bytes. It may be replaced by None, as `zero_grad()` does; an
    operator that would read or write it raises UsageError, and names itself."""

    @staticmethod
    def __new__(cls, parameter: torch.Tensor) -> SpentGradient:
        """In the place of the gradient of `parameter`."""
        made: SpentGradient = torch.Tensor._make_wrapper_subclass(
            cls,
            parameter.size(),
            strides=parameter.stride(),
            dtype=parameter.dtype,
            layout=parameter.layout,
            device=parameter.device,
        )
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"SpentGradient({tuple(self.shape)}, used in backward by overlap_optimizer)"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Raises UsageError."""
        raise _refused(func.name())

    # What reads its bytes without an operator. Torch would say that it is a subclass, or read where nothing is.

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Raises UsageError."""
        raise _refused("numpy()")

    __array__ = numpy

    def tolist(self) -> Any:
        """Raises UsageError."""
        raise _refused("tolist()")

    def share_memory_(self) -> Any:
        """Raises UsageError."""
        raise _refused("share_memory_()")

    def __dlpack__(self, *_: Any, **__: Any) -> Any:
        """Raises UsageError."""
        raise _refused("DLPack")

    def __reduce_ex__(self, _proto: Any) -> Any:
        """Raises UsageError."""
        raise _refused("pickle")


def _refused(who: str) -> UsageError:
    return UsageError(
        f"{who} reads or writes a gradient that overlap_optimizer has used in backward and freed", WITHOUT
    )
