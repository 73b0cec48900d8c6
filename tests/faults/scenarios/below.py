"""Faults below dspatch: between DeepSpeed's restore and our look at it. Runs inside ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def behind_the_optimizer(engine: Any, fault: Callable[[], object]) -> None:
    """Have the fault made as soon as DeepSpeed has restored the optimizer, on this engine alone."""
    original = engine.optimizer.load_state_dict

    def followed_by_a_fault(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        fault()
        return found

    engine.optimizer.load_state_dict = followed_by_a_fault
