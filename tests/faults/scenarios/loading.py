"""Save, harm, load: the scenarios of the guard and of the first patches. Runs inside ranks."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from tests.faults.scenarios.models import build_engine, rates
from tests.support.engines import full_weights, one_step_probe, train
from tests.support.inside import described, dspatch_or_not, with_dspatch
from tests.support.state import differences, same, snapshot

STEPS = 3
#: Entries of ``client_state`` that results bring back.
KEPT = ("lr_scheduler", "mine")
_TYPES: dict[str, Any] = {"str": str, "int": int, "numpy": np.int64, "path": Path}


def save(
    folder: str, engine: dict[str, Any], tags: list[Any], latest: bool = True, arguments: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Train and save under one tag after the other.

    Args:
        arguments: more of ``save_checkpoint``.

    Returns:
        For each tag the weights as they were saved, for ``weights_of``.
    """
    made = build_engine(seed=1, **engine)
    found = []
    for tag in tags:
        train(made, STEPS)
        made.save_checkpoint(folder, tag=tag, save_latest=latest, **(arguments or {}))
        found.append(full_weights(made))
    dist.barrier()
    return found


def load(
    folder: str,
    engine: dict[str, Any],
    arguments: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    saved_engine: dict[str, Any] | None = None,
    tag: Any = None,
    tag_type: str = "",
    expect: dict[str, str] | None = None,
    probe: bool = False,
) -> dict[str, Any]:
    """Load into a fresh engine, with dspatch if there are settings.

    Returns:
        ``error`` (class, text) or None, ``path``, ``changed``: names of state that the call changed, ``report``: outcomes
        by component, ``moved``: parameters that one step with lr 0 moves (only with ``probe``).
    """
    fresh = build_engine(seed=2, **engine)
    before = snapshot(fresh)
    asked = _TYPES[tag_type](tag) if tag_type else tag
    path, client, error, notes = None, None, None, ()
    with dspatch_or_not(settings) as dspatch:
        with dspatch.expect(**expect) if dspatch is not None and expect else nullcontext():
            try:
                path, client = fresh.load_checkpoint(folder, tag=asked, **(arguments or {}))
            except Exception as raised:
                error, notes = described(raised)
        report = dspatch.last_report(fresh) if dspatch is not None else None
    after = snapshot(fresh)
    return {
        "error": error,
        "notes": notes,
        "path": path,
        "steps": fresh.global_steps,
        "rates": rates(fresh),
        "client": client if client is None else {key: client[key] for key in KEPT if key in client},
        "changed": differences(before, after, ignore=()),
        "report": None if report is None else {name: one.word for name, one in report.outcomes.items()},
        "table": str(report),
        "moved": one_step_probe(fresh) if probe and error is None and path else None,
    }


def load_with_own_function(folder: str, engine: dict[str, Any], copies: bool, settings: Any) -> dict[str, Any]:
    """A ``custom_load_fn`` that copies everything, or all but one parameter."""

    def copy(src: dict[str, Any], dst: Any) -> None:
        for name, value in dst.state_dict().items():
            if copies or name != "last.weight":
                value.copy_(src[name])

    return load(folder, engine, settings=settings, arguments={"custom_load_fn": copy})


def load_as_nobody(folder: str, engine: dict[str, Any]) -> dict[str, Any]:
    """``load`` without the rights of root, which may read everything."""
    nobody = 65534
    root = os.geteuid() == 0
    if root:
        os.seteuid(nobody)
    try:
        return load(folder, engine, settings={})
    finally:
        if root:
            os.seteuid(0)


def weights_of_tags(
    folder: str, settings: dict[str, Any] | None, tags: list[Any], asked: Any, latest: bool,
    flags: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """ZeRO-3 without optimizer states, or with other ``flags``: which tag do the weights come from?"""
    engine: dict[str, Any] = {"stage": 3}
    saved = save(folder, engine, tags, latest)
    fresh = build_engine(seed=2, **engine)
    with dspatch_or_not(settings):
        try:
            path, _ = fresh.load_checkpoint(folder, tag=asked, **(flags or {"load_optimizer_states": False}))
        except Exception as raised:
            return {"error": (type(raised).__name__, str(raised)), "weights_of": []}
    loaded = full_weights(fresh)
    same_as = [
        str(tag) for tag, one in zip(tags, saved, strict=True) if all(same(loaded[name], one[name]) for name in one)
    ]
    return {"error": None, "path": os.path.relpath(path, folder), "weights_of": same_as}


def swallowed(folder: str, site: str, settings: dict[str, Any] | None) -> dict[str, Any]:
    """A caller above ``site`` swallows what comes out of it, on every rank, as a fork might."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    engine: dict[str, Any] = {"stage": 2}
    save(folder, engine, ["a"])
    owner = DeepSpeedZeroOptimizer if site == "load_state_dict" else DeepSpeedEngine
    original, outer = getattr(owner, site), DeepSpeedEngine._load_zero_checkpoint

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise OSError("the disk is on fire")

    def swallowing(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return outer(self, *args, **kwargs)
        except OSError:
            return False

    setattr(owner, site, broken)
    if site != "_load_zero_checkpoint":
        DeepSpeedEngine._load_zero_checkpoint = swallowing
    try:
        return load(folder, engine, settings=settings, tag="a")
    finally:
        setattr(owner, site, original)
        DeepSpeedEngine._load_zero_checkpoint = outer


def load_renamed(folder: str, settings: dict[str, Any] | None) -> dict[str, Any]:
    """A model whose names all have a prefix that the checkpoint lacks, as torch.compile and wrappers make them."""
    save(folder, {"stage": 0}, ["a"])
    engine = {"stage": 0, "model": "wrapped"}
    return load(folder, engine, settings=settings, arguments={"load_module_strict": False}, tag="a")


def disagreeing_folder(folder: str, elsewhere: str, settings: dict[str, Any] | None) -> dict[str, Any]:
    """Rank 1 looks into a folder of its own, which is empty."""
    engine: dict[str, Any] = {"stage": 2}
    save(folder, engine, ["a"])
    mine = folder if dist.get_rank() == 0 else elsewhere
    return load(mine, engine, settings=settings)


def user_check(folder: str, failing_rank: int | None) -> dict[str, Any]:
    """A registered check that raises on one rank; and ``verify_after_load`` called by hand."""
    engine: dict[str, Any] = {"stage": 2}
    save(folder, engine, ["a"])
    seen = []

    def check(loaded: Any, report: Any) -> None:
        seen.append(report.ok)
        if dist.get_rank() == failing_rank:
            raise ValueError("I do not like this")

    import dspatch

    dspatch.verify_after_load.register(check)
    try:
        found = load(folder, engine, settings={})
    finally:
        dspatch.verify_after_load.unregister(check)
    return {**found, "seen": seen}


def verify_by_hand(folder: str, harm: str, expected_step: int | None) -> dict[str, Any]:
    """Load, harm the live state on rank 1, ask for the verdict again."""
    engine: dict[str, Any] = {"stage": 2}
    save(folder, engine, ["a"])
    fresh = build_engine(seed=2, **engine)
    with with_dspatch() as dspatch:
        fresh.load_checkpoint(folder)
        if harm == "moments" and dist.get_rank() == 1:
            for state in fresh.optimizer.optimizer.state.values():
                state["exp_avg"].zero_()
        try:
            report = dspatch.verify_after_load(fresh, expected_step=expected_step)
        except dspatch.DspatchError as raised:
            return {"error": (type(raised).__name__, str(raised)), "outcomes": {}}
    return {
        "error": None,
        "outcomes": {name: one.word for name, one in report.outcomes.items()},
        "largest": dict(report.largest),
        "json": report.to_dict(),
    }
