"""Weights that are loaded behind the optimizer's back are told at once.

Symptom: ``engine.module.load_state_dict(...)`` works, and the first step puts the former weights back.
Cause: ZeRO and the 16-bit optimizers make the weights from fp32 masters, which that call does not touch.
Change: when the engine has made its optimizer (``_configure_optimizer``), a hook of torch's is put on its module; it
compares masters with weights behind every load of weights that is not DeepSpeed's own.
Limits: a load into a part of the module is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspatch.verdict.first_step import watch_weights


def watch_module(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make the optimizer, then watch the module."""
    made = wrapped(*args, **kwargs)
    watch_weights(instance, lambda: hasattr(type(instance)._configure_optimizer, "_self_patch_id"))
    return made
