"""The words for what a check found, and the finding itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dspatch.errors import NAMES_SHOWN

RESTORED = "restored"
FRESH = "fresh"
MISMATCH = "mismatch"
ABSENT = "absent"
LEFT_OUT = "left out"
NOT_CHECKED = "not checked"

#: Worst first. A component's outcome is the worst of what was found about it.
BY_WEIGHT = (MISMATCH, FRESH, ABSENT, NOT_CHECKED, LEFT_OUT, RESTORED)

#: Names (parameters, keys) that a finding carries; the rest is counted, so that a rank's findings stay small.
NAMES_KEPT = NAMES_SHOWN


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one component.

    Attributes:
        word: one of ``BY_WEIGHT``.
        reason: why, for ``not checked`` and ``absent``; empty otherwise.
    """

    word: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.reason else self.word


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The one that weighs most; ``restored`` of nothing."""
    return min(outcomes, key=lambda one: BY_WEIGHT.index(one.word), default=Outcome(RESTORED))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or noteworthy, on one rank or, in a report, on all ranks that found the same.

    Attributes:
        component: such as ``"moments"``.
        outcome: one of ``BY_WEIGHT``. ``restored`` marks what is noteworthy although nothing was lost in the load.
        rank: global rank, the first of ``ranks``.
        file: name of the file that this rank compared with, empty without one.
        names: the first few parameters or keys.
        count: how many there are, on the rank that has most.
        expected: what the file holds, or what must be true.
        found: what is there instead.
        do: what helps, empty where nothing but another checkpoint does.
        ranks: all ranks that found this, the first few dozen; empty while it is one rank's own.
    """

    component: str
    outcome: str
    rank: int
    file: str
    names: tuple[str, ...]
    count: int
    expected: str
    found: str
    do: str = ""
    ranks: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data; ``Finding.from_dict`` makes the finding again."""
        return {
            "component": self.component,
            "outcome": self.outcome,
            "rank": self.rank,
            "file": self.file,
            "names": list(self.names),
            "count": self.count,
            "expected": self.expected,
            "found": self.found,
            "do": self.do,
            "ranks": list(self.ranks),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Finding:
        """The finding that ``to_dict`` described."""
        return cls(**{**data, "names": tuple(data["names"]), "ranks": tuple(data.get("ranks", ()))})


def kept(names: Iterable[str]) -> tuple[tuple[str, ...], int]:
    """The first few different names in order, and how many there are."""
    distinct = list(dict.fromkeys(names))
    return tuple(distinct[:NAMES_KEPT]), len(distinct)
