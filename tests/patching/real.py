"""Scenarios on a real DeepSpeed, in rank processes into which dspatch came by import or by the startup file."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

import deepspeed
import torch.distributed as dist
import wrapt

from tests.support.engines import build_engine, train
from tests.support.inside import with_dspatch
from tests.support.models import TinyNet


def ledger() -> list[tuple[str, str, str]]:
    """``(patch, state, tier)`` of each row."""
    import dspatch

    return [(row.patch, row.state, row.tier) for row in dspatch.status()]


def _sites() -> dict[str, Any]:
    import dspatch

    found = {}
    for row in dspatch.status():
        module, _, qualname = row.site.partition(":")
        owner: Any = sys.modules.get(module)
        if owner is None:  # a module that this release does not have
            continue
        *parents, name = qualname.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        if name in vars(owner):
            found[row.site] = vars(owner)[name]
    return found


def on_and_off_again() -> dict[str, bool]:
    """Site -> whether it changed while dspatch was on, for sites that are the very same object again behind it."""
    import dspatch

    dspatch.deactivate()
    before = _sites()
    with with_dspatch():
        during = _sites()
    after = _sites()
    assert list(before) == list(after)
    return {site: during[site] is not before[site] for site in before if after[site] is before[site]}


def pickled_method() -> tuple[str, str]:
    """What pickling the loader of an engine comes to, without and with dspatch."""
    engine = build_engine(stage=0)

    def outcome() -> str:
        try:
            return f"{len(pickle.dumps(engine.load_checkpoint))} bytes"
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}"

    import dspatch

    dspatch.deactivate()
    without = outcome()
    with with_dspatch():
        return without, outcome()


def nested_zero_init(folder: str) -> dict[str, Any]:
    """A ZeRO-3 model made inside two ``deepspeed.zero.Init`` contexts, which rewrite ``Module.__init__`` meanwhile."""
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }

    def made() -> Any:
        with deepspeed.zero.Init(config_dict_or_path=config), deepspeed.zero.Init(config_dict_or_path=config):
            inside = TinyNet()
        return build_engine(stage=3, model=inside)

    engine = made()
    train(engine, 2)
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    fresh = made()
    with with_dspatch() as dspatch:
        fresh.load_checkpoint(folder)
        report = dspatch.last_report(fresh)
    return {name: one.word for name, one in report.outcomes.items()}


def between_other_tools(folder: str) -> dict[str, Any]:
    """Other people's wrappers below and above ours on the real loader; a load goes through each of them once."""
    engine = build_engine(stage=2)
    train(engine, 1)
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    calls: list[str] = []

    def tool(name: str) -> Any:
        def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            calls.append(name)
            return wrapped(*args, **kwargs)

        return wrapper

    owner = type(engine)
    plain = vars(owner)["load_checkpoint"]
    import dspatch

    dspatch.deactivate()
    owner.load_checkpoint = wrapt.FunctionWrapper(plain, tool("below"))
    below = vars(owner)["load_checkpoint"]
    try:
        with with_dspatch():
            owner.load_checkpoint = wrapt.FunctionWrapper(vars(owner)["load_checkpoint"], tool("above"))
            engine.load_checkpoint(folder)
            guarded = dspatch.last_report(engine) is not None
            during = list(calls)
        calls.clear()
        engine.load_checkpoint(folder)
        return {"during": during, "guarded": guarded, "after": list(calls), "below is there": _inner(owner) is below}
    finally:
        owner.load_checkpoint = plain


def _inner(owner: Any) -> Any:
    """What lies under the outermost wrapper."""
    return vars(owner)["load_checkpoint"].__wrapped__


def frames_of_ours(folder: str) -> dict[str, list[str]]:
    """Functions of dspatch that run while an engine trains, and, to show that the counting works, while it loads."""
    import dspatch

    homes = tuple(
        os.path.dirname(os.path.abspath(str(sys.modules[name].__file__))) for name in ("dspatch", "dspatch.patches")
    )
    engine = build_engine(stage=2)
    train(engine, 1)
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    seen: set[str] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.startswith(homes):
            seen.add(frame.f_code.co_name)

    found = {}
    for name, work in (("step", lambda: train(engine, 2)), ("load", lambda: engine.load_checkpoint(folder))):
        seen.clear()
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
        found[name] = sorted(seen)
    assert dspatch.last_report(engine) is not None
    return found
