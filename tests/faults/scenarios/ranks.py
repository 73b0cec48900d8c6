"""Ranks that fail alone, hang, stay away, or were started with other settings. Runs inside ranks."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist

from tests.faults.scenarios.loading import load, save
from tests.support.engines import build_engine, train
from tests.support.inside import with_dspatch

ENGINE: dict[str, Any] = {"stage": 2}


def stays_away(folder: str, absent_rank: int, seconds: float) -> dict[str, Any]:
    """One rank never calls the loader, as with `if rank == 0: engine.load_checkpoint(...)`; later all call it."""
    save(folder, ENGINE, ["a"])
    fresh = build_engine(seed=2, **ENGINE)
    error, started = None, time.monotonic()
    with with_dspatch(timeout=seconds) as dspatch:
        if dist.get_rank() != absent_rank:
            try:
                fresh.load_checkpoint(folder)
            except dspatch.DspatchError as raised:
                error = (type(raised).__name__, str(raised))
    took = time.monotonic() - started
    # Behind the limits of both sides, so that the next collective finds all ranks.
    time.sleep(max(0.0, seconds + 11 - took))
    dist.barrier()
    steps = fresh.global_steps
    return {"error": error, "seconds": took, "steps": steps, "next": load(folder, ENGINE, settings={})["error"]}


def fails_alone(folder: str, failing_rank: int, how: str, seconds: float) -> dict[str, Any]:
    """One rank's loader raises, or does not come back in time."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    save(folder, ENGINE, ["a"])
    original = DeepSpeedEngine._get_all_zero_checkpoint_state_dicts

    def broken(*args: Any, **kwargs: Any) -> Any:
        if dist.get_rank() == failing_rank:
            if how == "raises":
                raise OSError("no space in page cache")
            if how == "is slow":
                _read_for(4 * seconds)
            else:
                time.sleep(seconds + 2)
        return original(*args, **kwargs)

    DeepSpeedEngine._get_all_zero_checkpoint_state_dicts = broken
    try:
        found = load(folder, ENGINE, settings={"timeout": seconds})
    finally:
        DeepSpeedEngine._get_all_zero_checkpoint_state_dicts = original
    time.sleep(seconds if how == "hangs" else 0)
    dist.barrier()
    # The job goes on: the next load counts and agrees as if nothing had been.
    return {**found, "next": load(folder, ENGINE, settings={})["error"]}


def _read_for(seconds: float) -> None:
    """Read a file slowly, as from storage that many ranks share."""
    until = time.monotonic() + seconds
    with open("/dev/zero", "rb", buffering=0) as source:
        while time.monotonic() < until:
            source.read(1 << 20)
            time.sleep(0.05)


def own_arguments(folder: str, mine: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Every rank brings its own arguments and settings."""
    save(folder, ENGINE, ["a", "b"])
    return load(folder, ENGINE, arguments=mine, settings=settings)


def lossy(folder: str, settings: dict[str, Any], expect: dict[str, str] | None = None) -> dict[str, Any]:
    """A load after which the moments are zero, as a fork might do it: DeepSpeed's loader is followed by an eraser."""
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    save(folder, ENGINE, ["a"])
    original = DeepSpeedZeroOptimizer._load_legacy_checkpoint

    def forgetful(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        for state in self.optimizer.state.values():
            state["exp_avg"].zero_()
            state["exp_avg_sq"].zero_()
        return found

    DeepSpeedZeroOptimizer._load_legacy_checkpoint = forgetful
    try:
        return load(folder, ENGINE, settings=settings, expect=expect)
    finally:
        DeepSpeedZeroOptimizer._load_legacy_checkpoint = original


def two_loads(folder: str, settings: dict[str, Any]) -> list[Any]:
    """The same engine loads one tag, trains, and goes back to another."""
    save(folder, ENGINE, ["a", "b"])
    fresh = build_engine(seed=2, **ENGINE)
    said = []
    with with_dspatch(**settings) as dspatch:
        for tag in ("b", "a"):
            fresh.load_checkpoint(folder, tag=tag)
            report = dspatch.last_report(fresh)
            said.append((report.request.tag, report.ok, fresh.global_steps))
            train(fresh, 1)
    return said
