"""A module load that leaves names over says so.

Symptom: with ``load_module_strict=False`` (or a ``custom_load_fn``) parameters keep their initial values, silently.
Cause: ``load_module_state_dict`` throws away what ``torch.nn.Module.load_state_dict`` returns.
Change: the names of the model and of the checkpoint are compared before the call; the guard reports what is left over.
Limits: names only; what a ``custom_load_fn`` copies is not known, the verdict compares the weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dspatch.live.attributes import flag
from dspatch.verdict.running import current


def note_left_over(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Note which names of model and checkpoint do not meet, then call through."""
    load = current()
    if load is not None and not flag(instance, "load_universal_checkpoint"):
        checkpoint = inspect.signature(wrapped).bind(*args, **kwargs).arguments.get("checkpoint")
        module = checkpoint.get("module") if isinstance(checkpoint, dict) else None
        if isinstance(module, dict):
            there, here = set(module), set(instance.module.state_dict())
            load.not_restored, load.no_source = sorted(there - here), sorted(here - there)
            load.matched = len(there & here)
    return wrapped(*args, **kwargs)
