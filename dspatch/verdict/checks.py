"""Checks of the user's own, run on every rank after each measured load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dspatch.errors import LoadIncomplete, explain, shorten
from dspatch.verdict.ranks import Message, Ranks
from dspatch.verdict.report import LoadReport

Check = Callable[[Any, LoadReport], object]

_registered: list[Check] = []


def register(check: Check) -> Check:
    """Add a check; usable as a decorator. A check that is there already stays there once."""
    if check not in _registered:
        _registered.append(check)
    return check


def unregister(check: Check) -> None:
    """Take a check out again.

    Raises:
        ValueError: it is not registered.
    """
    _registered.remove(check)


def registered() -> tuple[Check, ...]:
    """The checks, in the order in which they were registered."""
    return tuple(_registered)


def run_all(engine: Any, report: LoadReport, ranks: Ranks) -> None:
    """Run the checks on this rank; when one raises anywhere, every rank raises.

    Raises:
        LoadIncomplete: a check raised on another rank. On its own rank whatever it raised.
    """
    error: Exception | None = None
    for check in registered():
        try:
            check(engine, report)
        except Exception as raised:
            error = raised
            break
    said = None if error is None else f"{type(error).__name__}: {error}"[:1500]
    answer = ranks.agree("checks after", {"error": said}, _merge)
    if error is not None:
        raise error
    if answer["problem"] is not None:
        raise LoadIncomplete(answer["problem"])


def _merge(messages: Sequence[Message]) -> Message:
    failed = [(rank, one) for rank, one in enumerate(messages) if one["error"]]
    if not failed:
        return {"problem": None}
    return {
        "problem": explain(
            "a check that was registered with verify_after_load failed",
            found=failed[0][1]["error"],
            where=shorten(f"rank {rank} on {one['host']}" for rank, one in failed),
        )
    }
