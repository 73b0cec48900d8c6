"""Verdicts on live tensors that are made from each other: weights from masters, copies from weights."""

from __future__ import annotations

from collections.abc import Sequence

from dspatch.checkpoint.tensors import TensorRef
from dspatch.live.reading import LivePair, Reading
from dspatch.verdict import pairs
from dspatch.verdict.collector import Collector
from dspatch.verdict.layout import REGISTER
from dspatch.verdict.matching import SAME_AS_FILE, Matcher
from dspatch.verdict.outcome import MISMATCH, RESTORED
from dspatch.verdict.settling import conclude
from dspatch.verdict.tensors import Check, compare_directly, dtype_of, wrong_size

_CAST = "weights that are the cast of their masters"
_UNDONE = "masters that the weights were not made from: the first step would undo the load"
_OF_ANOTHER = "masters of which some are those of another parameter of the same size: they were saved in another order"
_SAVED_SO = "the files themselves hold masters that their weights were not made from; the first step changes both"


def judge_pairs(reading: Reading, matcher: Matcher, notes: Collector, threads: int, thorough: bool) -> int:
    """Compare all pairs, by a sample where the files prove the rest.

    Args:
        reading: with the pairs.
        matcher: for the files.
        notes: to add to.
        threads: how many to use.
        thorough: compare also what follows from masters and weights that both equal their files.

    Returns:
        Bytes of live tensors that were compared with files.
    """
    proven = not thorough and _follows_from_files(reading, notes)
    # Files of two saves under one tag are each restored to the byte; a sample of the pairs tells them apart.
    sampled = [one for one in reading.pairs if one.component == "masters" and not one.role] if proven else []
    stale = [one for one in zip(sampled, pairs.differing_in(sampled, threads, sampled=True), strict=True) if one[1]]
    todo = [one for one in reading.pairs if not proven or one.component != "masters" or one.role]
    compared = 0
    for pair, names in zip(todo, pairs.differing_in(todo, threads), strict=True):
        if pair.component != "masters":
            _copy(pair, names, notes)
        elif pair.role:
            compared += _derived_weights(pair, names, reading, matcher, notes)
        elif names:
            stale.append((pair, names))
    if stale:
        _stale_masters(stale, notes)
    return compared


def _follows_from_files(reading: Reading, notes: Collector) -> bool:
    """Whether masters and weights both equal files whose layout by name is that of the engine.

    Then their pairs can only differ when they did so at the save; without a layout, masters could be right bytes in the
    wrong place.
    """
    return reading.layout is not None and all(
        notes.says(one) and not notes.has_trouble(one) for one in ("masters", "weights")
    )


def _copy(pair: LivePair, names: Sequence[str], notes: Collector) -> None:
    if not names:
        notes.fine(pair.component)
        return
    found = f"the {pair.label.split(' ', 1)[0]} copy that forward uses holds other values"
    expected = "every copy of a weight equal to the weight"
    notes.note(pair.component, MISMATCH, found, names, expected, found, do=pair.hint, always=True)


def _stale_masters(stale: Sequence[tuple[LivePair, Sequence[str]]], notes: Collector) -> None:
    names = [name for _, differing in stale for name in differing]
    hint = stale[0][0].hint
    sound = notes.says("masters") and not (notes.has_trouble("masters") or notes.has_trouble("weights"))
    if not sound:
        notes.note("masters", MISMATCH, "stale", names, _CAST, _UNDONE, do=hint, always=True)
    elif pairs.exchanged(stale):
        # Right bytes in the wrong place; moments lie where their masters do, and nothing else can tell of them.
        for component in ("masters", "moments"):
            notes.note(component, MISMATCH, "exchanged", names, _CAST, _OF_ANOTHER, do=REGISTER)
    else:
        notes.note("masters", RESTORED, "stale", names, _CAST, _SAVED_SO)


def _derived_weights(pair: LivePair, names: Sequence[str], reading: Reading, matcher: Matcher, notes: Collector) -> int:
    """ZeRO-3: no file holds the weights; they are the masters of the shard, cast."""
    if not names and not notes.has_trouble("masters"):
        notes.fine("weights")
        return 0
    if names:
        notes.note("masters", MISMATCH, "stale", names, _CAST, _UNDONE, do=pair.hint, always=True)
    tree = matcher.tree("weights", pair.role)
    if tree is None:
        return 0
    ref, inside = tree.get(pair.path), [one.name for one in pair.fragments]
    if not isinstance(ref, TensorRef):
        matcher.absent("weights", inside, pair.role)
        return 0
    if pair.swap:
        whole = pair.start + int(pair.source.numel())
        ref = matcher.swapped("weights", pair.swap, dtype_of(pair.source), whole, inside)
        if ref is None:
            return 0
    numel = max(one.start + one.numel for one in pair.fragments)
    check = Check("weights", pair.label, "weight", pair.role, pair.copy, numel, pair.fragments, ref, pair.start)
    wrong = wrong_size(check)
    if wrong:
        notes.note("weights", MISMATCH, "size", inside, SAME_AS_FILE, wrong, pair.role)
        return 0
    compare_directly(check)
    conclude(check, notes, reading.pairs)
    return check.nbytes
