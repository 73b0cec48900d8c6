"""Errors that a caller swallows inside a load are not lost.

Symptom: the load reports success, yet a part of the state was never read, because an exception was caught on the way.
Cause: a ``try`` around a loader that turns the exception into ``False`` or ``None``; forks and in-house builds have it.
Change: the wrapper remembers each exception that leaves the function; if the outer ``load_checkpoint`` then returns as
if nothing had happened, the guard raises that very exception, with its own traceback.
Limits: an exception that is caught in the same function that raises it never leaves a traced function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspatch.verdict.running import current


def trace_errors(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call through; leave an exception with the running load before it goes on its way."""
    try:
        return wrapped(*args, **kwargs)
    except Exception as error:
        load = current()
        if load is not None:
            load.saw(error)
        raise
