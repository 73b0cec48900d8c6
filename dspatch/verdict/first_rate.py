"""The learning rate of the first step after a load that restored the schedule and not the hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspatch.checkpoint.shard import facts_of
from dspatch.checkpoint.unpickle import Tree
from dspatch.errors import shorten
from dspatch.live import schedule
from dspatch.verdict.outcome import MISMATCH, Finding
from dspatch.verdict.request import Request


def comes_from_schedule(request: Request, files: Mapping[str, Tree]) -> bool:
    """Whether the load restores the schedule, and the rates lie in no file that it reads.

    So it is with ``load_optimizer_states=False``, and where an elastic checkpoint has no hyperparameters.
    """
    if "lr_scheduler" not in request.asked:
        return False
    shard = facts_of(files["shard"]).optimizer if "shard" in files else None
    return "param_groups" not in request.asked or (shard is not None and shard.elastic)


def moved_away(engine: Any) -> list[tuple[int, float, float]]:
    """``(group, rate in force, rate that the schedule asks for)`` of each group where the two differ."""
    asked = schedule.asked_for(engine)
    if asked is None:
        return []
    have = schedule.in_force(engine)
    if len(have) != len(asked):
        return []
    pairs = enumerate(zip(have, asked, strict=True))
    return [(number, float(rate), wanted) for number, (rate, wanted) in pairs if not schedule.same(rate, wanted)]


def put_right(engine: Any) -> list[tuple[int, float, float]]:
    """Set the rates that the schedule asks for; what was changed, as ``moved_away`` tells it."""
    moved = moved_away(engine)
    if moved:
        schedule.put_in_force(engine)
    return moved


def finding(engine: Any, rank: int) -> tuple[Finding, ...]:
    """What to report when the first step would run at other rates than the schedule's."""
    moved = moved_away(engine)
    if not moved:
        return ()
    names = tuple(f"group {number}.lr" for number, _, _ in moved)
    return (
        Finding(
            "param_groups", MISMATCH, rank, "", names[:5], len(names),
            f"the learning rate of the restored schedule, {shorten(f'{rate:g}' for _, _, rate in moved)}",
            f"{shorten(f'{rate:g}' for _, rate, _ in moved)} for the first step",
            "DSPATCH_DISABLE names first-rate, which would set it",
        ),
    )  # fmt: skip
