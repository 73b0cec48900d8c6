"""Live state against the files of a tag: one piece of code for all optimizer families.

Nothing here talks to other ranks, and nothing is changed. Components that the caller did not ask for are compared too:
when they differ their outcome is ``left out``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dspatch.checkpoint.unpickle import Tree
from dspatch.live.reading import GroupLayout, Reading
from dspatch.verdict import layout
from dspatch.verdict.collector import Collector
from dspatch.verdict.derived import judge_pairs
from dspatch.verdict.matching import Matcher, is_array
from dspatch.verdict.memory import default_threads
from dspatch.verdict.outcome import ABSENT, MISMATCH, NOT_CHECKED, Finding, Outcome
from dspatch.verdict.request import DATA_PARTS
from dspatch.verdict.settling import conclude, settle

#: How much is measured: every byte by checksum where that is possible, every byte against the file, all but bytes,
#: nothing.
LEVELS = ("full", "bytes", "structure", "off")

#: Moments whose largest value is reported.
_TOLD = ("exp_avg", "exp_avg_sq", "momentum_buffer")
_SAMPLE = 1 << 16

_STRUCTURE_ONLY = "DSPATCH_VERIFY=structure compares no bytes"
_NO_PLACE = "the checkpoint has one, this engine has no place for it"
_ORDER = "parameters in the same groups and order as in the file"
_REBUILD = (
    "build the model and its param groups in the order of the run that saved, with the same round_robin_gradients"
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One rank's answer.

    Attributes:
        outcomes: component -> what became of it; components that neither the engine nor the files have are not in it.
        findings: what is wrong or noteworthy, worst first, merged so that there are few.
        bytes_compared: bytes of live tensors that were compared with files.
        largest: kind of moment -> its largest absolute value on this rank; empty when no bytes were compared.
    """

    outcomes: dict[str, Outcome]
    findings: list[Finding]
    bytes_compared: int
    largest: dict[str, float] = field(default_factory=dict)


def unchecked(asked: frozenset[str], reason: str, more: Iterable[str] = ()) -> Comparison:
    """The answer of a rank that compares nothing: everything asked for that every engine has, and ``more``."""
    listed = sorted({*asked.difference(DATA_PARTS), *more})
    return Comparison({one: Outcome(NOT_CHECKED, reason) for one in listed}, [], 0)


def compare(
    reading: Reading,
    files: Mapping[str, Tree],
    *,
    level: str = "full",
    asked: frozenset[str],
    threads: int = 0,
    strict: bool = True,
) -> Comparison:
    """Compare one rank's reading with its files.

    Args:
        reading: from ``live.read``.
        files: ``"model"`` and ``"shard"`` -> tree of this rank's file; without a file its components are
            ``not checked``.
        level: one of ``LEVELS``.
        asked: components that the caller asked for.
        strict: ``load_module_strict`` of the load; without it frozen weights that the file lacks are left out by request.
        threads: for checksums; 0: at most 4, and no more than this rank's share of the cores.

    Raises:
        ValueError: no such level.
        Damaged: a file cannot be read.
    """
    if level not in LEVELS:
        raise ValueError(f"level is one of {', '.join(LEVELS)}, not {level!r}")
    if level == "off":
        return unchecked(asked, "verification is off", reading.not_checked)
    notes = Collector(files, asked, reading.rank)
    matcher = Matcher(files, notes, strict, reading.swap_rank)
    for tensor in reading.tensors:
        matcher.tensor(tensor)
    for state in reading.states:
        matcher.state(state)
    for value in reading.values:
        matcher.value(value)
    matcher.weights_by_name(reading.tensors, reading.stage)
    _judge_layout(reading, files, asked, notes)
    _note_unreadable(reading, files, notes)
    if level == "structure":
        _leave_bytes(reading, matcher, notes)
        return Comparison(notes.outcomes(), notes.findings(), 0)
    compared = _judge_bytes(reading, matcher, notes, level, threads or default_threads())
    return Comparison(notes.outcomes(), notes.findings(), compared, largest_moments(reading))


def _judge_bytes(reading: Reading, matcher: Matcher, notes: Collector, level: str, threads: int) -> int:
    settle(matcher.checks, threads, trust_checksums=level == "full")
    for check in matcher.checks:
        conclude(check, notes, reading.pairs)
    compared = sum(check.nbytes for check in matcher.checks)
    return compared + judge_pairs(reading, matcher, notes, threads, thorough=level == "bytes")


def _leave_bytes(reading: Reading, matcher: Matcher, notes: Collector) -> None:
    components = {check.component for check in matcher.checks} | {"weights" for pair in reading.pairs if pair.role}
    for component in components:
        notes.unknown(component, _STRUCTURE_ONLY)


def _judge_layout(reading: Reading, files: Mapping[str, Tree], asked: frozenset[str], notes: Collector) -> None:
    """Parameters that the file has in another place of the flat buffers; bytes cannot show that."""
    tree = files.get("model")
    if tree is None:
        return
    live: Sequence[GroupLayout] | None = reading.layout
    filed = layout.filed_layout(tree.get(("param_shapes",)))
    if reading.numbered:
        live, filed = reading.numbered, layout.inferred_layout(reading.numbered, reading.registered, tree.get(("module",)))
    moved = layout.misplaced(live, filed) if live is not None and filed is not None else []
    if not moved:
        return
    here, there = moved[0]
    found = f"where {here} lies here, the file has {there}"
    # At stage 3 weights come from masters, and only then by position.
    third = ("weights",) if reading.stage == 3 and "masters" in asked else ()
    for component in ("masters", "moments", *third):
        names = [one for one, _ in moved]
        notes.note(component, MISMATCH, "layout", names, _ORDER, found, "model", do=_REBUILD)


def _note_unreadable(reading: Reading, files: Mapping[str, Tree], notes: Collector) -> None:
    for component, reason in reading.not_checked.items():
        notes.unknown(component, reason)
    for component, lost in reading.nowhere.items():
        expected = f"{component} in the file"
        notes.note(component, ABSENT, "nowhere", lost.names, expected, lost.reason, reason=lost.reason)
    for component, (role, path) in reading.no_place.items():
        tree = files.get(role)
        if tree is not None and tree.get(path) is not None:
            notes.note(
                component, NOT_CHECKED, "no place", [], "a place in the engine", _NO_PLACE, role, reason=_NO_PLACE
            )


def largest_moments(reading: Reading) -> dict[str, float]:
    """The largest absolute value of each kind of moment on this rank, padding left out: ``{"exp_avg": 0.02}``.

    Of each parameter the first ``_SAMPLE`` elements: the value tells a reader that moments are there, the bytes were compared.
    """
    found: dict[str, float] = {}
    for state in reading.states:
        for key in _TOLD:
            value = state.entries.get(key)
            if not is_array(value) or value is None or int(value.numel()) != state.size:
                continue
            flat = value.detach().reshape(-1)
            for one in state.fragments:
                low, high = flat.narrow(0, one.start, min(one.numel, _SAMPLE)).aminmax()
                found[key] = max(found.get(key, 0.0), -float(low), float(high))
    return found
