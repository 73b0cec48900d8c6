"""The answers of ``Check``s: by checksum where that is possible, else against the bytes of the file."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dspatch.checkpoint.content import crc_of_record
from dspatch.live.reading import LivePair
from dspatch.verdict import pairs
from dspatch.verdict.collector import Collector
from dspatch.verdict.matching import SAME_AS_FILE
from dspatch.verdict.memory import crc_of_runs
from dspatch.verdict.outcome import FRESH, MISMATCH
from dspatch.verdict.tensors import Check, checksum_candidate, compare_directly, dtype_of, is_zero


def settle(checks: Sequence[Check], threads: int, trust_checksums: bool) -> None:
    """Set ``equal`` of every check, and what differs.

    Args:
        checks: to answer.
        threads: how many to use.
        trust_checksums: whether an equal CRC-32 is enough; whatever has none, or another one, is compared directly.
    """
    _by_checksum(checks, threads, trust_checksums)
    left = [one for one in checks if one.equal is None]
    if threads > 1 and len(left) > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(compare_directly, left))
    else:
        for one in left:
            compare_directly(one)
    _find_rot([one for one in left if one.equal and one.suspect])


def _by_checksum(checks: Sequence[Check], threads: int, trust: bool) -> None:
    runs: dict[tuple[int, int], Any] = {}
    wanted: list[tuple[Check, tuple[int, int]]] = []
    for check in checks:
        run = checksum_candidate(check)
        if run is not None:
            # Parameters that are views of one storage share its checksum.
            key = (int(run.data_ptr()), int(run.numel()))
            runs.setdefault(key, run)
            wanted.append((check, key))
    sums = dict(zip(runs, crc_of_runs(list(runs.values()), threads), strict=True))
    for check, key in wanted:
        check.suspect = sums[key] != check.ref.record.crc32
        if trust and not check.suspect:
            check.equal = True


def _find_rot(checks: Sequence[Check]) -> None:
    """Live bytes that equal the file's although the checksum differs: other padding, or a file that has changed."""
    rotten: dict[int, bool] = {}
    for check in checks:
        record = check.ref.record
        if id(record) not in rotten:
            rotten[id(record)] = crc_of_record(record) != record.crc32
        if rotten[id(record)]:
            check.equal, check.differing = False, [one.name for one in check.fragments] or [check.label]
            check.detail = f"{check.what} as in the file, but the file was changed after it was written: {record.name}"


def conclude(check: Check, notes: Collector, related: Sequence[LivePair]) -> None:
    """Turn the answer of a check into notes.

    Args:
        check: an answered one.
        notes: to add to.
        related: pairs of masters and weights, which tell masters that were made from the weights.
    """
    if check.equal:
        notes.fine(check.component)
        return
    word, found = MISMATCH, check.detail
    if check.component == "moments" and is_zero(check.tensor, check.fragments, check.numel):
        word, found = FRESH, f"{check.what} is zero, as in an optimizer that has not stepped"
    elif check.component == "masters":
        differing = set(check.differing)
        mine = [one for one in related if one.component == "masters" and differing & {f.name for f in one.fragments}]
        if mine and all(pairs.is_rebuilt(one) for one in mine):
            word, found = FRESH, f"masters made from the {dtype_of(mine[0].copy)} weights, not those of the file"
    expected = f"{check.what} {SAME_AS_FILE}"
    notes.note(check.component, word, check.what, check.differing, expected, found, check.role)
