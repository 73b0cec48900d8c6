"""The report of one load: what became of each component, on all ranks, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspatch.errors import shorten
from dspatch.verdict.outcome import (
    ABSENT,
    BY_WEIGHT,
    FRESH,
    LEFT_OUT,
    MISMATCH,
    NAMES_KEPT,
    NOT_CHECKED,
    RESTORED,
    Finding,
    Outcome,
    worst,
)
from dspatch.verdict.request import COMPONENTS, Request

#: Raised whenever a field changes its meaning or goes away; new fields leave it as it is.
SCHEMA = 1

LOST = frozenset({FRESH, MISMATCH, ABSENT})

_SYMBOLS = {RESTORED: "+", FRESH: "0", MISMATCH: "x", ABSENT: "-", LEFT_OUT: "/", NOT_CHECKED: "?"}
_FINDINGS_SHOWN = 8
_OUTSIDE = "not part of a DeepSpeed checkpoint: data order, random-number state"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One load, the same on all ranks.

    Attributes:
        request: what was asked for.
        world: number of ranks.
        outcomes: component -> the worst of all ranks.
        by_rank: component -> outcome word -> the ranks that have it, for components that are not restored everywhere.
        findings: what is wrong or noteworthy, of all ranks, worst first (at most 32).
        intent: what was declared by ``dspatch.expect``.
        seconds: ``load`` (DeepSpeed's part) and ``verdict``, of the slowest rank.
        bytes_compared: bytes of live tensors compared with files, all ranks together.
        largest: kind of moment -> largest absolute value of each rank, in rank order (first 64 ranks).
    """

    request: Request
    world: int
    outcomes: Mapping[str, Outcome]
    by_rank: Mapping[str, Mapping[str, Sequence[int]]]
    findings: Sequence[Finding]
    intent: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    bytes_compared: int = 0
    largest: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def lost(self) -> dict[str, Outcome]:
        """Components that were asked for and are not what the files hold, without what was declared."""
        return {
            name: outcome for name, outcome in self.outcomes.items() if outcome.word in LOST and name not in self.intent
        }

    @property
    def ok(self) -> bool:
        """Whether nothing that was asked for is lost."""
        return not self.lost

    @property
    def left_out(self) -> dict[str, Outcome]:
        """Components that the caller asked to leave out and that differ from the files."""
        return {name: one for name, one in self.outcomes.items() if one.word == LEFT_OUT and name not in self.intent}

    @property
    def not_checked(self) -> dict[str, Outcome]:
        """Components about which nothing can be said."""
        return {name: one for name, one in self.outcomes.items() if one.word == NOT_CHECKED}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, see README for the schema."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "request": self.request.to_dict(),
            "world": self.world,
            "outcomes": {name: {"outcome": one.word, "reason": one.reason} for name, one in self.outcomes.items()},
            "by_rank": {name: {word: list(ranks) for word, ranks in one.items()} for name, one in self.by_rank.items()},
            "findings": [one.to_dict() for one in self.findings],
            "intent": dict(self.intent),
            "seconds": dict(self.seconds),
            "bytes_compared": self.bytes_compared,
            "largest": {key: list(values) for key, values in self.largest.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LoadReport:
        """The report that ``to_dict`` described.

        Raises:
            ValueError: this is none, or of another schema.
        """
        try:
            if data["schema"] != SCHEMA:
                raise ValueError(f"a load report of schema {data['schema']!r}; this dspatch reads {SCHEMA}")
            made = cls(
                request=Request(**data["request"]),
                world=int(data["world"]),
                outcomes={name: Outcome(one["outcome"], one["reason"]) for name, one in data["outcomes"].items()},
                by_rank={name: dict(one) for name, one in data["by_rank"].items()},
                findings=[Finding.from_dict(one) for one in data["findings"]],
                intent=dict(data["intent"]),
                seconds=dict(data["seconds"]),
                bytes_compared=int(data["bytes_compared"]),
                largest={key: list(values) for key, values in data["largest"].items()},
            )
            str(made)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a load report ({type(error).__name__}: {error})") from error
        return made

    def to_json(self) -> str:
        """``to_dict`` as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        head = f"tag {self.request.tag} from {self.request.folder}, {self.world} rank{'s' if self.world > 1 else ''}"
        lines = [head, *(self._line(name) for name in sorted(self.outcomes, key=_position))]
        lines += [_told(one) for one in self.findings[:_FINDINGS_SHOWN]]
        if len(self.findings) > _FINDINGS_SHOWN:
            lines.append(f"  and {len(self.findings) - _FINDINGS_SHOWN} more findings in the report")
        if self.largest:
            told = (f"{key} {', '.join(f'{one:.3g}' for one in values[:4])}" for key, values in self.largest.items())
            lines.append(f"  largest moments by rank: {'; '.join(told)}")
        return "\n".join([*lines, f"  {_OUTSIDE}"])

    def _line(self, name: str) -> str:
        outcome = self.outcomes[name]
        ranks = self.by_rank.get(name, {}).get(outcome.word, ())
        where = "" if len(ranks) in (0, self.world) else f" on rank {shorten(ranks)}"
        declared = " (declared)" if name in self.intent else ""
        return f"  {_SYMBOLS[outcome.word]} {name:<15}{outcome}{where}{declared}"


def _position(name: str) -> tuple[int, str]:
    return (COMPONENTS.index(name) if name in COMPONENTS else len(COMPONENTS), name)


def _told(one: Finding) -> str:
    names = ", ".join(one.names) + (f" and {one.count - len(one.names)} more" if one.count > len(one.names) else "")
    several = len(one.ranks) > 1
    ranks = f"ranks {shorten(one.ranks)}, for example {one.rank}" if several else f"rank {one.rank}"
    where = ranks + (f", {one.file}" if one.file else "") + (f": {names}" if names else "")
    advice = f"; {one.do}" if one.do else ""
    return f"  {one.component} {one.outcome} ({where}): expected {one.expected}, found {one.found}{advice}"


# --- from ranks to one report -----------------------------------------------------------------------------------------

_FINDINGS_KEPT = 32
_RANKS_KEPT = 64


def merge_messages(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rank 0's part: the ranks' verdict messages as the plain data that ``from_merged`` reads."""
    outcomes: dict[str, list[list[str]]] = {}
    ranks: dict[str, dict[str, list[int]]] = {}
    for number, message in enumerate(messages):
        for name, (word, reason) in message["outcomes"].items():
            outcomes.setdefault(name, []).append([word, reason])
            ranks.setdefault(name, {}).setdefault(word, []).append(number)
    largest: dict[str, list[float]] = {}
    for message in messages[:_RANKS_KEPT]:
        for key, value in message["largest"].items():
            largest.setdefault(key, []).append(value)
    return {
        "outcomes": {name: _worst_of(pairs) for name, pairs in outcomes.items()},
        "by_rank": {name: by_word for name, by_word in ranks.items() if set(by_word) != {RESTORED}},
        "findings": _merge_findings(messages)[:_FINDINGS_KEPT],
        "seconds": {key: max(one["seconds"][key] for one in messages) for key in messages[0]["seconds"]},
        "bytes_compared": sum(one["bytes_compared"] for one in messages),
        "largest": largest,
        "failed": [one["failed"] for one in messages if one.get("failed")],
    }


def _merge_findings(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What several ranks found becomes one finding; what most weighs comes first."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for message in messages:
        for one in message["findings"]:
            key = tuple(one[part] for part in ("component", "outcome", "expected", "found", "do"))
            first = merged.setdefault(key, {**one, "ranks": []})
            if one["rank"] not in first["ranks"] and len(first["ranks"]) < _RANKS_KEPT:
                first["ranks"] = [*first["ranks"], one["rank"]]
            first["names"] = list(dict.fromkeys([*first["names"], *one["names"]]))[:NAMES_KEPT]
            first["count"] = max(first["count"], one["count"])
    return sorted(merged.values(), key=lambda one: BY_WEIGHT.index(one["outcome"]))


def _worst_of(pairs: Sequence[Sequence[str]]) -> list[str]:
    outcome = worst(Outcome(word, reason) for word, reason in pairs)
    return [outcome.word, outcome.reason]


def from_merged(merged: Mapping[str, Any], request: Request, world: int, intent: Mapping[str, str]) -> LoadReport:
    """The report, from what ``merge_messages`` gave."""
    return LoadReport(
        request=request,
        world=world,
        outcomes={name: Outcome(word, reason) for name, (word, reason) in merged["outcomes"].items()},
        by_rank=merged["by_rank"],
        findings=[Finding.from_dict(one) for one in merged["findings"]],
        intent={name: word for name, word in intent.items() if name != "nothing"},
        seconds=merged["seconds"],
        bytes_compared=merged["bytes_compared"],
        largest=merged["largest"],
    )
