"""What the checks of one rank say, gathered by component until it becomes outcomes and findings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dspatch.checkpoint.unpickle import Tree
from dspatch.verdict.outcome import (
    ABSENT,
    FRESH,
    LEFT_OUT,
    MISMATCH,
    NOT_CHECKED,
    RESTORED,
    Finding,
    Outcome,
    kept,
    worst,
)


@dataclass(slots=True)
class _Note:
    expected: str
    found: str
    do: str
    names: list[str] = field(default_factory=list)


class Collector:
    """Takes notes and merges those that say the same about different parameters.

    Args:
        files: role -> tree, for the names of files.
        asked: components that the caller asked for.
        rank: global rank.
    """

    def __init__(self, files: Mapping[str, Tree], asked: frozenset[str], rank: int) -> None:
        self._files, self._asked, self._rank = files, asked, rank
        self._outcomes: dict[str, list[Outcome]] = {}
        self._notes: dict[tuple[str, str, str, str], _Note] = {}

    def fine(self, component: str) -> None:
        """A check of this component ran and found it equal."""
        self._outcomes.setdefault(component, []).append(Outcome(RESTORED))

    def unknown(self, component: str, reason: str) -> None:
        """A check of this component could not run."""
        self._outcomes.setdefault(component, []).append(Outcome(NOT_CHECKED, reason))

    def note(
        self,
        component: str,
        word: str,
        what: str,
        names: Iterable[str],
        expected: str,
        found: str,
        role: str = "",
        do: str = "",
        reason: str = "",
        always: bool = False,
    ) -> None:
        """Something differs.

        Args:
            component: which.
            word: ``mismatch``, ``fresh``, ``absent``, ``left out``, or ``restored`` for what is noteworthy only.
            what: such as ``"exp_avg"``; notes that agree in this, component, word and role become one finding.
            names: parameters or keys.
            expected: what must be, in words.
            found: what is, in words; of several notes that become one, the first is kept.
            role: the file that was compared with.
            do: what helps.
            reason: for the outcome.
            always: it is wrong even when the caller left this component out.
        """
        if component not in self._asked and not always and word != RESTORED:
            self._outcomes.setdefault(component, []).append(Outcome(LEFT_OUT))
            return
        self._outcomes.setdefault(component, []).append(Outcome(word, reason))
        note = self._notes.setdefault((component, word, what, role), _Note(expected, found, do))
        note.names.extend(names)

    def names_of(self, component: str) -> set[str]:
        """Names in the notes of one component so far."""
        return {name for key, note in self._notes.items() if key[0] == component for name in note.names}

    def has_trouble(self, component: str) -> bool:
        """Whether anything but ``restored`` was said about a component."""
        return any(one.word != RESTORED for one in self._outcomes.get(component, ()))

    def says(self, component: str) -> bool:
        """Whether any check of a component ran."""
        return component in self._outcomes

    def outcomes(self) -> dict[str, Outcome]:
        """Component -> the worst that was said about it."""
        found = {}
        for component, said in self._outcomes.items():
            outcome = worst(said)
            if outcome.word in (NOT_CHECKED, ABSENT) and component not in self._asked:
                outcome = Outcome(LEFT_OUT)
            found[component] = outcome
        return found

    def findings(self) -> list[Finding]:
        """What is wrong or noteworthy, worst first."""
        made = []
        for (component, word, _, role), note in self._notes.items():
            names, count = kept(note.names)
            file = os.path.basename(self._files[role].path) if role in self._files else ""
            made.append(Finding(component, word, self._rank, file, names, count, note.expected, note.found, note.do))
        order = (MISMATCH, FRESH, ABSENT, NOT_CHECKED, LEFT_OUT, RESTORED)
        return sorted(made, key=lambda one: order.index(one.outcome))
