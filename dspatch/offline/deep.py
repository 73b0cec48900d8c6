"""The deep check: every byte of every record against its CRC-32, on all cores, and the values of masters and moments.

Memory stays flat: each thread holds one piece. It can be stopped at any moment and then says what it covered.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspatch.checkpoint.archive import Record
from dspatch.checkpoint.content import CHUNK, crc_combined, crc_of, record_pieces
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.files import opened
from dspatch.checkpoint.shard import FileFacts, facts_of
from dspatch.checkpoint.tensors import TensorRef
from dspatch.checkpoint.unpickle import Tree, read_tree
from dspatch.offline.record import FileRecord, Models
from dspatch.offline.rounding import disagreement
from dspatch.offline.scan import Run, Scan

#: Bytes that are one piece of work: large enough to be worth a thread's time, small enough to share out. Larger records
#: are cut, and their checksums put together from those of the parts.
_PORTION = 16 << 20
#: Seconds between two reports of progress.
_TICK = 0.1

#: State tensors that hold squares of gradients, so are never negative.
_SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")

Progress = Callable[[int, int], object]


class _Stopped(Exception):
    pass


@dataclass(slots=True)
class Covered:
    """How far a deep check came: bytes of records, files done entirely, and whether it was stopped."""

    done: int = 0
    total: int = 0
    files_done: int = 0
    files: int = 0
    seconds: float = 0.0
    stopped: bool = False


@dataclass(slots=True)
class _Whole:
    """A record whose parts come in, in any order: part -> checksum, bytes and scan."""

    parts: int
    seen: dict[int, tuple[int, int, Scan | None]] = field(default_factory=dict)


@dataclass(slots=True)
class _Part:
    """One run of bytes of one record."""

    record: Record
    number: int = 0
    parts: int = 1
    start: int = 0
    length: int = 0


@dataclass(slots=True)
class _Job:
    """One file being checked."""

    record: FileRecord
    path: Path
    tree: Tree
    facts: FileFacts
    watched: dict[int, tuple[str, str, TensorRef]]
    runs: Callable[[TensorRef], Sequence[Run] | None]
    left: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    magnitudes: Counter[int] = field(default_factory=Counter)
    cut: dict[int, _Whole] = field(default_factory=dict)


class Check:
    """Checks files with a pool of threads; reading, checksums and numpy all work outside the GIL.

    Args:
        threads: how many; None: one for each core that this process may use.
        progress: called with bytes done and bytes in all, at most ten times a second.
    """

    def __init__(self, threads: int | None = None, progress: Progress | None = None) -> None:
        self.threads = threads or len(
            os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        )
        self._progress = progress
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._own = threading.local()
        self._told = 0.0
        self.covered = Covered()
        # More threads take turns at the GIL between pieces, so these are longer then.
        self._chunk = CHUNK if self.threads <= 8 else 4 * CHUNK

    def stop(self) -> None:
        """End the work after the pieces that are being read."""
        self._stop.set()

    def run(self, files: Iterable[tuple[FileRecord, Path]]) -> Covered:
        """Check files and write what was found into the ``deep`` of their records.

        Args:
            files: records and their tags' folders; damaged ones are left out.

        Ctrl-C stops the check; the records of files that were not done entirely say how far it came.
        """
        began = time.monotonic()
        models = Models()
        todo = [job for record, folder in files if (job := _job(record, folder, models)) is not None]
        portions = [(job, portion) for job in todo for portion in _portions(job)]
        portions.sort(key=lambda one: -sum(part.length for part in one[1]))
        self.covered = Covered(total=sum(_bytes(job) for job in todo), files=len(todo))
        with ThreadPoolExecutor(self.threads) as pool:
            pending: set[Future[None]] = set()
            try:
                for job, portion in portions:
                    pending.add(pool.submit(self._portion, job, portion))
                while pending:
                    done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    for one in done:
                        one.result()
            except KeyboardInterrupt:
                self.stop()
                for one in pending:
                    one.cancel()
        self.covered.stopped = self._stop.is_set()
        for job in todo:
            self._finish(job, models)
        self.covered.seconds = time.monotonic() - began
        if self._progress is not None:
            self._progress(self.covered.done, self.covered.total)
        return self.covered

    def _buffer(self) -> memoryview:
        """This thread's own, kept from record to record."""
        found: memoryview | None = getattr(self._own, "buffer", None)
        if found is None:
            found = self._own.buffer = memoryview(bytearray(self._chunk))
        return found

    def _portion(self, job: _Job, portion: list[_Part]) -> None:
        try:
            with opened(str(job.path)) as descriptor:
                for part in portion:
                    self._part(job, part, descriptor)
            first = next(iter(_records(job)), None)
            if job.tree.archive is not None and portion[0].record is first and portion[0].number == 0:
                job.tree.archive.check_structure()
        except Damaged as error:
            with job.lock:
                job.result.setdefault("damage", [error.kind, error.why])
        except _Stopped:
            return
        with job.lock:
            job.left -= 1

    def _part(self, job: _Job, part: _Part, descriptor: int) -> None:
        record, watched = part.record, job.watched.get(id(part.record))
        scan = None
        if watched is not None:
            _, label, ref = watched
            scan = Scan(ref.dtype, job.runs(ref), part.start // ref.itemsize, label.startswith(_SQUARES))
        crc = 0
        for piece in record_pieces(record, descriptor, part.start, part.length, self._buffer()):
            if record.crc32 is not None:
                crc = crc_of(piece, crc)
            if scan is not None:
                scan.feed(piece)
            if self._stop.is_set():
                raise _Stopped
        self._advance(job, part.length)
        if part.parts > 1:
            with job.lock:
                whole = job.cut.setdefault(id(record), _Whole(part.parts))
                whole.seen[part.number] = (crc, part.length, scan)
                if len(whole.seen) < whole.parts:
                    return
            crc, scan = _joined(whole)
        if record.crc32 is not None and crc != record.crc32:
            # Noted, not raised: the other records of the file are still worth looking at.
            why = f"was changed after it was written: the checksum of {record.name} differs"
            with job.lock:
                job.result.setdefault("damage", ["crc", why])
            return
        if scan is not None and watched is not None:
            _note(job, scan, watched[0], watched[1])

    def _advance(self, job: _Job, count: int) -> None:
        with self._lock:
            self.covered.done += count
            job.result["covered"] = job.result.get("covered", 0) + count
            now = time.monotonic()
            tell = self._progress is not None and now - self._told >= _TICK
            if tell:
                self._told = now
        if tell and self._progress is not None:
            self._progress(self.covered.done, self.covered.total)

    def _finish(self, job: _Job, models: Models) -> None:
        result = {"covered": 0, "total": _bytes(job), **job.result}
        result["complete"] = job.left == 0
        if job.left == 0:
            self.covered.files_done += 1
        if job.magnitudes:
            result["magnitudes"] = {str(key): job.magnitudes[key] for key in sorted(job.magnitudes)}
        if job.record.kind == "shard" and "damage" not in result and not self.covered.stopped:
            model = models.of(job.path.parent, job.record.mp_rank or 0)
            if model is not None and job.record.dp_rank is not None:
                try:
                    other = disagreement(job.facts, model, job.record.dp_rank)
                except Damaged:
                    other = None  # the model file; it has a finding of its own
                if other is not None:
                    result["other_save"] = list(other)
        job.record.deep = result


def _note(job: _Job, scan: Scan, component: str, label: str) -> None:
    with job.lock:
        if scan.bad:
            found = job.result.setdefault("not_finite", {})
            number, first = found.get(component, (0, f"{label}, element {scan.first_bad:,}"))
            found[component] = [number + scan.bad, first]
        if component == "moments":
            job.result["moments"] = job.result.get("moments", 0) + 1
            job.result["zero_moments"] = job.result.get("zero_moments", True) and scan.zero
            job.magnitudes.update(scan.magnitudes)


def _job(record: FileRecord, folder: Path, models: Models) -> _Job | None:
    if record.damage is not None:
        return None
    path = folder / record.name
    try:
        # A model file is needed once more, for the shards that belong to it.
        tree, facts = models.load(path) if record.kind == "model" else _load(path)
    except Damaged as error:
        record.damage = [error.kind, error.why]  # it changed since it was listed
        return None
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        return None
    job = _Job(record, path, tree, facts, _watched(facts), _runs(facts, record, folder))
    job.left = len(_portions(job))
    return job


def _load(path: Path) -> tuple[Tree, FileFacts]:
    tree = read_tree(path)
    return tree, facts_of(tree)


def _records(job: _Job) -> list[Record]:
    if job.tree.archive is not None:
        return list(job.tree.archive.records.values())
    unique = {id(ref.record): ref.record for ref in job.tree.tensors}
    return list(unique.values())


def _bytes(job: _Job) -> int:
    return sum(record.size for record in _records(job))


def _portions(job: _Job) -> list[list[_Part]]:
    portions: list[list[_Part]] = []
    size = _PORTION
    for record in _records(job):
        count = max(1, -(-record.size // _PORTION))
        for number in range(count):
            start = number * _PORTION
            part = _Part(record, number, count, start, min(_PORTION, record.size - start))
            if size + part.length > _PORTION:
                portions.append([])
                size = 0
            portions[-1].append(part)
            size += part.length
    return portions


def _joined(whole: _Whole) -> tuple[int, Scan | None]:
    crc, _, scan = whole.seen[0]
    for number in range(1, whole.parts):
        more, length, other = whole.seen[number]
        crc = crc_combined(crc, more, length)
        if scan is not None and other is not None:
            scan.add(other)
    return crc, scan


def _watched(facts: FileFacts) -> dict[int, tuple[str, str, TensorRef]]:
    """Records whose values are looked at: those that hold one moment and nothing else.

    Masters only where there are no moments: what makes a master NaN has made its moments NaN before.
    """
    found: dict[int, tuple[str, str, TensorRef]] = {}
    listed: list[tuple[str, str, TensorRef]] = []
    if facts.optimizer is not None:
        if not facts.optimizer.moments:
            listed += [("masters", f"master {at}", ref) for at, ref in enumerate(facts.optimizer.masters)]
        for key, one in facts.optimizer.state.items():
            listed += [("moments", f"{name} of {str(key)[:80]}", ref) for name, ref in one.items()
                       if isinstance(ref, TensorRef) and name != "step"]  # fmt: skip
    for component, label, ref in listed:
        if ref.is_whole_record and ref.numel and Scan.knows(ref.dtype):
            found[id(ref.record)] = (component, label, ref)
    return found


def _runs(facts: FileFacts, record: FileRecord, folder: Path) -> Callable[[TensorRef], Sequence[Run] | None]:
    """Which elements of a flat tensor belong to parameters; the rest is padding, which upstream leaves uninitialised."""
    optimizer = facts.optimizer
    if optimizer is None or optimizer.style not in ("zero12", "bf16", "zero3"):
        return lambda ref: None
    positions: dict[int, int] = {id(ref): at for at, ref in enumerate(optimizer.masters)}
    for at, one in enumerate(optimizer.state.values()):
        positions.update((id(ref), at) for ref in one.values() if isinstance(ref, TensorRef))
    shapes: list[list[tuple[str, tuple[int, ...]]]] = []
    if optimizer.style == "zero3":
        shapes = _shapes(folder / f"zero_pp_rank_{record.dp_rank}_mp_rank_{record.mp_rank or 0:02d}_model_states.pt")
    size, rank = max(facts.partition_count, default=1), record.dp_rank or 0

    def runs(ref: TensorRef) -> Sequence[Run] | None:
        at = positions.get(id(ref))
        if at is None:
            return None
        if optimizer.style == "zero3":
            return _stage3_runs(shapes[at], size, rank) if at < len(shapes) else None
        padding = facts.group_paddings[at] if at < len(facts.group_paddings) else 0
        lean = (
            optimizer.masters[at].numel
            if optimizer.style == "zero12" and at < len(optimizer.masters)
            else ref.numel - padding
        )
        return [(0, lean)]

    return runs


def _shapes(path: Path) -> list[list[tuple[str, tuple[int, ...]]]]:
    try:
        return facts_of(read_tree(path)).param_shapes
    except (Damaged, TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        return []


def _stage3_runs(shapes: Sequence[tuple[str, tuple[int, ...]]], size: int, rank: int) -> list[Run]:
    """Every parameter is cut into ``size`` equal parts; the last ones are padded."""
    found, at = [], 0
    for _, shape in shapes:
        numel = 1
        for length in shape:
            numel *= length
        part = -(-numel // size)
        valid = min(part, max(0, numel - rank * part))
        if valid:
            found.append((at, at + valid))
        at += part
    return found
