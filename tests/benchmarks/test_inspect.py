"""What `dspatch inspect` costs: the inventory <= 5 ms a shard whatever its size; --deep >= 80 % of bare checksums."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from zlib_ng import zlib_ng

from dspatch.offline import reading
from dspatch.offline.deep import Check
from dspatch.offline.record import Models, read
from dspatch.offline.survey import look
from tests.support.paths import ROOT
from tests.support.pool import Pools
from tests.support.results import values

_ROUNDS = 9

#: Some GB of checkpoint, as one shard of a real run has: what a check costs for each file does not count then.
_HEAVY: dict[str, Any] = {"width": 2400, "depth": 24}

_MODELS: dict[str, dict[str, Any]] = {
    "small": {"width": 17, "depth": 2},
    "large": {"width": 1500, "depth": 24},
    "1,000 parameters": {"width": 17, "depth": 500},
}


def _saved(pools: Pools, folder: Path, stage: int, model: dict[str, Any]) -> Path:
    values(pools.get("newest", 2).run("tests.checkpoint.saving:save", timeout=300, folder=str(folder), steps=1, stage=stage,
                                      model=model))  # fmt: skip
    return folder


@pytest.mark.parametrize("name", _MODELS)
@pytest.mark.parametrize("stage", [2, 3])
def test_inventory(pools: Pools, tmp_path: Path, stage: int, name: str) -> None:
    survey = look(_saved(pools, tmp_path / "run", stage, _MODELS[name]))
    items = reading.plan(survey, [survey.tags[0].name])
    shards = [one for one in items if one.name.endswith("optim_states.pt")]
    taken: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        models = Models()
        for one in sorted(items, key=lambda one: one.name, reverse=True):  # model files first, as shards need them
            began = time.perf_counter()
            read(one.tag, reading.folder_of(survey, one.tag), one.name, one.size, models)
            taken.setdefault(one.name, []).append((time.perf_counter() - began) * 1000)
    each = {one.name: statistics.median(taken[one.name]) for one in items}
    shard = max(each[one.name] for one in shards)
    model = max(value for one, value in each.items() if one.endswith("model_states.pt"))
    size = max(one.size for one in shards) / 1e6
    print(f"\nZeRO-{stage}, {name}: {shard:.2f} ms a shard of {size:.1f} MB (target 5), {model:.2f} ms a model file")


@pytest.mark.parametrize("stage", [2, 3])
def test_deep(pools: Pools, tmp_path: Path, stage: int) -> None:
    """The page cache is warm; bare is zlib_ng.crc32 over the same files, read in the same pieces by as many threads."""
    survey = look(_saved(pools, tmp_path / "run", stage, _HEAVY))
    items = reading.plan(survey, [survey.tags[0].name])
    files = [reading.folder_of(survey, one.tag) / one.name for one in items]
    total = sum(path.stat().st_size for path in files)
    threads = Check().threads
    taken: dict[str, list[tuple[float, float]]] = {"bare": [], "deep": []}
    for _ in range(_ROUNDS):
        records = reading.read_all(survey, items)
        pairs = [(record, reading.folder_of(survey, record.tag)) for record in records]
        for name, work in (("bare", lambda: _bare(files, threads)), ("deep", lambda pairs=pairs: Check().run(pairs))):
            began = time.perf_counter(), time.process_time()
            work()
            taken[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    bare, deep = ([statistics.median(one[at] for one in taken[name]) for at in (0, 1)] for name in ("bare", "deep"))
    speed = [total / one[0] / 1e9 for one in (deep, bare)]
    print(f"\nZeRO-{stage}, {total / 1e6:.0f} MB, {threads} threads: deep {speed[0]:.2f} GB/s, bare {speed[1]:.2f} GB/s: "
          f"{bare[0] / deep[0]:.0%} (target 80 %); by CPU time {bare[1] / deep[1]:.0%}")  # fmt: skip


def _bare(files: list[Path], threads: int) -> None:
    """Nothing but reads and zlib_ng.crc32: the pieces of 1 MiB with which that is fastest here, no checks, no Python between."""
    portions = [(path, at) for path in files for at in range(0, path.stat().st_size, 64 << 20)]

    def one(portion: tuple[Path, int]) -> int:
        path, start = portion
        buffer, crc, preadv, crc32 = memoryview(bytearray(1 << 20)), 0, os.preadv, zlib_ng.crc32
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for at in range(start, min(start + (64 << 20), os.fstat(descriptor).st_size), 1 << 20):
                read = preadv(descriptor, [buffer], at)
                crc = crc32(buffer if read == len(buffer) else buffer[:read], crc)
        finally:
            os.close(descriptor)
        return crc

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, portions))


def test_memory(pools: Pools, tmp_path: Path) -> None:
    """Peak memory of the command, a small checkpoint against one of GB: flat."""
    peaks = {}
    for name, model in (("small", _MODELS["small"]), ("heavy", _HEAVY)):
        folder = _saved(pools, tmp_path / name, 2, model)
        for more in ((), ("--deep",)):
            program = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
                       "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")  # fmt: skip
            command = [sys.executable, "-c", program, sys.executable, "-m", "dspatch", "inspect", str(folder), *more]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            peaks[name, more] = int(done.stdout) / 1024
    for more in ((), ("--deep",)):
        print(f"\ninspect {' '.join(more)}: peak {peaks['small', more]:.0f} MiB small, {peaks['heavy', more]:.0f} MiB at 1.9 GB")
