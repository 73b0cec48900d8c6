"""The deep check: every byte of every record against its CRC-32, on all cores, and the values of masters and moments.

Memory stays flat: each thread holds one piece and the tree of one file. It can be stopped at any moment and then says what it
covered.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout
from dspatch.checkpoint.archive import Record
from dspatch.checkpoint.content import crc_combined, crc_of_run
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.files import opened
from dspatch.checkpoint.shard import FileFacts, facts_of
from dspatch.checkpoint.tensors import TensorRef
from dspatch.checkpoint.unpickle import Tree, read_tree
from dspatch.offline.record import FileRecord, Models
from dspatch.offline.rounding import disagreement
from dspatch.offline.scan import Run, Scan

#: Bytes that are one portion of work, at least and at most: large enough to be worth a thread's turn, small enough to share
#: out evenly. Larger records are cut, and their checksums put together from those of the parts.
_PORTION, _LARGEST_PORTION, _PORTIONS_EACH = 4 << 20, 64 << 20, 16
#: Bytes read at once: twice this, the page and its copy, fits the second-level cache of ordinary cores. Many threads take
#: turns at the GIL between pieces, so these are longer then.
_PIECE, _PIECE_OF_MANY, _MANY = 768 << 10, 4 << 20, 8
#: Seconds between two reports of progress.
_TICK = 0.1

Progress = Callable[[int, int], object]


@dataclass(slots=True)
class Covered:
    """How far a deep check came: bytes, files done entirely, and whether it was stopped."""

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
    portions: list[list[_Part]] = field(default_factory=list)


class Check:
    """Checks files with a pool of threads; reading, checksums and numpy all work outside the GIL.

    Args:
        threads: how many; None: one for each core that this process may use.
        progress: called with bytes done and bytes in all, at the beginning, about ten times a second, and at the end.
    """

    def __init__(self, threads: int | None = None, progress: Progress | None = None) -> None:
        self.threads = threads or len(
            os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        )
        self._progress = progress
        self._stop = threading.Event()
        #: Guards what the threads share; they wait on it for portions while others open files.
        self._turn = threading.Condition()
        self._files: deque[tuple[FileRecord, Path]] = deque()
        self._portions: deque[tuple[_Job, list[_Part]]] = deque()
        self._opening = 0
        self._portion_size = _PORTION
        self._open_jobs: dict[int, _Job] = {}
        self._models = Models()
        self._models_lock = threading.Lock()
        self._error: BaseException | None = None
        self.covered = Covered()

    def stop(self) -> None:
        """End the work after the records, or parts of at most 64 MiB of them, that are being read."""
        self._stop.set()

    def run(self, files: Iterable[tuple[FileRecord, Path]]) -> Covered:
        """Check files and write what was found into the ``deep`` of their records.

        Args:
            files: records and their tags' folders; damaged ones are left out.

        Ctrl-C stops the check; the records of files that were not done entirely say how far it came.
        """
        began = time.monotonic()
        todo = sorted((one for one in files if one[0].damage is None), key=lambda one: -one[0].size)
        for record, _ in todo:
            record.deep = {"covered": 0, "total": record.size, "complete": False}
        self.covered = Covered(total=sum(record.size for record, _ in todo), files=len(todo))
        self._files.extend(todo)
        even = self.covered.total // (self.threads * _PORTIONS_EACH) >> 20 << 20
        self._portion_size = min(max(even, _PORTION), _LARGEST_PORTION)
        self._tell()
        self._work_through()
        for job in self._open_jobs.values():  # stopped in the middle: what was found so far counts
            job.record.deep = {**(job.record.deep or {}), **job.result}
        self.covered.stopped = self._stop.is_set()
        self.covered.seconds = time.monotonic() - began
        self._tell()
        return self.covered

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.covered.done, self.covered.total)

    def _work_through(self) -> None:
        workers = [threading.Thread(target=self._worker, daemon=True) for _ in range(self.threads)]
        try:
            for one in workers:
                one.start()
            for one in workers:
                while one.is_alive():
                    one.join(_TICK)
                    self._tell()
        except KeyboardInterrupt:
            self.stop()
        finally:
            if any(one.is_alive() for one in workers):
                self.stop()
            for one in workers:
                if one.ident is not None:
                    one.join()
        if self._error is not None:
            raise self._error

    def _worker(self) -> None:
        buffer = memoryview(bytearray(_PIECE if self.threads <= _MANY else _PIECE_OF_MANY))
        try:
            while (taken := self._next()) is not None:
                self._portion(*taken, buffer)
        except BaseException as error:
            self._error = error
            self.stop()

    def _next(self) -> tuple[_Job, list[_Part]] | None:
        """The next portion, of a file that is open or of the next one; None when there is nothing left to do."""
        while not self._stop.is_set():
            with self._turn:
                if self._portions:
                    return self._portions.popleft()
                if not self._files:
                    if not self._opening:
                        return None
                    self._turn.wait(_TICK)
                    continue
                record, folder = self._files.popleft()
                self._opening += 1
            job = None
            try:
                job = self._open(record, folder)
            finally:
                with self._turn:
                    self._opening -= 1
                    if job is not None:
                        self._open_jobs[id(job)] = job
                        self._portions.extend((job, portion) for portion in job.portions)
                    self._turn.notify_all()
            if job is not None and not job.portions:
                self._finish(job)
        return None

    def _open(self, record: FileRecord, folder: Path) -> _Job | None:
        path = folder / record.name
        try:
            if record.kind == "model":
                with self._models_lock:  # it is needed once more, for the shards that belong to it
                    tree, facts = self._models.load(path)
            else:
                tree = read_tree(path)
                facts = facts_of(tree)
        except Damaged as error:
            record.damage = [error.kind, error.why]  # it changed since it was listed
            record.deep = None
            return None
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
            record.deep = None
            return None
        job = _Job(record, path, tree, facts, _watched(facts), _runs(facts, record, folder))
        job.portions = _portions(job, self._portion_size)
        job.left = len(job.portions)
        return job

    def _portion(self, job: _Job, portion: list[_Part], buffer: memoryview) -> None:
        try:
            with opened(str(job.path)) as descriptor:
                for part in portion:
                    if self._stop.is_set():
                        return
                    self._part(job, part, descriptor, buffer)
            if job.tree.archive is not None and portion is job.portions[0]:
                job.tree.archive.check_structure()
        except Damaged as error:
            with job.lock:
                job.result.setdefault("damage", [error.kind, error.why])
        with job.lock:
            job.left -= 1
            last = job.left == 0
        if last:
            self._finish(job)

    def _part(self, job: _Job, part: _Part, descriptor: int, buffer: memoryview) -> None:
        record, watched = part.record, job.watched.get(id(part.record))
        scan = None
        if watched is not None:
            ref = watched[2]
            scan = Scan(ref.dtype, lambda: job.runs(ref), part.start // ref.itemsize)
        crc = crc_of_run(record.path, descriptor, record.locate(descriptor) + part.start, part.length, buffer,
                         scan.feed if scan is not None else None)  # fmt: skip
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
        with self._turn:
            self.covered.done += count
            assert job.record.deep is not None
            job.record.deep["covered"] += count

    def _finish(self, job: _Job) -> None:
        record, result = job.record, job.result
        assert record.deep is not None
        # What is no record's data: headers, padding, the index.
        self._advance(job, record.size - record.deep["covered"])
        with self._turn:
            self.covered.files_done += 1
            del self._open_jobs[id(job)]
        if job.magnitudes:
            result["magnitudes"] = {str(key): job.magnitudes[key] for key in sorted(job.magnitudes)}
        if record.kind == "shard" and "damage" not in result and record.dp_rank is not None:
            with self._models_lock:
                model = self._models.of(job.path.parent, record.mp_rank or 0)
            try:
                other = disagreement(job.facts, model, record.dp_rank) if model is not None else None
            except Damaged:
                other = None  # the model file; it has a finding of its own
            if other is not None:
                result["other_save"] = list(other)
        record.deep |= {"complete": True, **result}


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


def _records(job: _Job) -> list[Record]:
    if job.tree.archive is not None:
        return list(job.tree.archive.records.values())
    unique = {id(ref.record): ref.record for ref in job.tree.tensors}
    return list(unique.values())


def _portions(job: _Job, most: int) -> list[list[_Part]]:
    portions: list[list[_Part]] = []
    size = most
    for record in _records(job):
        count = max(1, -(-record.size // most))
        for number in range(count):
            start = number * most
            part = _Part(record, number, count, start, min(most, record.size - start))
            if size + part.length > most:
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
    model = folder / layout.model_file(3, record.mp_rank or 0, record.dp_rank or 0)
    size, rank = max(facts.partition_count, default=1), record.dp_rank or 0

    def runs(ref: TensorRef) -> Sequence[Run] | None:
        at = positions.get(id(ref))
        if at is None:
            return None
        if optimizer.style == "zero3":
            shapes = _shapes(model)
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
