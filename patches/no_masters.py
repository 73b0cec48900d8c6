"""An engine without an optimizer loads weights at ZeRO-3.

Symptom: ``load_checkpoint(..., load_optimizer_states=False)`` of a ZeRO-3 engine without an optimizer raises AttributeError
on ``_restore_from_bit16_weights``, after the weights were loaded.
Cause: ``DeepSpeedEngine.load_checkpoint`` asks what stands in the optimizer's place (``DeepSpeedZeRoOffload``) to make masters
from the weights, and it has none.
Change: for the length of the load it is lent a function of that name that does nothing; INFO once.
Limits: with the optimizer states such an engine reads no checkpoint at all, and is refused before it tries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspatch import log
from dspatch.live.attributes import class_names

_NAME = "_restore_from_bit16_weights"


def lend_nothing(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Load; where there are no masters, making them from the weights is no work."""
    offload = instance.optimizer
    if "DeepSpeedZeRoOffload" not in class_names(offload) or hasattr(offload, _NAME):
        return wrapped(*args, **kwargs)
    setattr(offload, _NAME, lambda: None)
    try:
        returned = wrapped(*args, **kwargs)
    finally:
        delattr(offload, _NAME)
    log.info_once("no-masters", "the weights were loaded; DeepSpeed would have failed on masters, of which there are none")
    return returned
