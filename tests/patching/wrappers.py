"""Wrappers that note their calls, to stand in for patch files where only the putting on and taking off is tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: One entry per call of a wrapped site: the positional and keyword arguments.
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = []


def note_call(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Note the call and change nothing."""
    CALLS.append((args, kwargs))
    return wrapped(*args, **kwargs)
