"""Weights replaced behind the optimizer, and schedulers outside the engine. Runs inside ranks."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
import torch.distributed as dist

from tests.support.engines import build_engine, full_weights, one_step_probe, train
from tests.support.inside import with_dspatch

RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def replace_weights(engine: dict[str, Any], settings: dict[str, Any], refresh: bool, same: bool) -> dict[str, Any]:
    """``engine.module.load_state_dict`` with other weights, or with its own; then one step with lr 0."""
    with with_dspatch(**settings) as dspatch:
        made = build_engine(seed=1, **engine)
        train(made, 2)
        state = {name: value.clone() for name, value in made.module.state_dict().items()}
        if not same:
            state = {name: value + 0.5 for name, value in state.items()}
        made.module.load_state_dict(state)
        if refresh:
            dspatch.refresh_masters(made)
        before = full_weights(made)
        copied = copy.deepcopy(made.module)
        copied.load_state_dict(state)
        moved = one_step_probe(made)
    # The whole module cannot be pickled: some releases put local functions of their own on it.
    hooks = pickle.dumps(list(copied._load_state_dict_post_hooks.values()))
    return {"moved": bool(moved), "weights": len(before), "named": b"dspatch" in hooks}


def outside(folder: str, restore: bool, steps: int) -> dict[str, Any]:
    """A scheduler that the engine does not know, fresh or restored by the caller, as Accelerate and HF do it."""

    def made() -> tuple[Any, Any]:
        engine = build_engine(stage=2, seed=1)
        base = engine.optimizer.optimizer
        return engine, torch.optim.lr_scheduler.LambdaLR(base, lambda epoch: RATES[epoch])

    engine, scheduler = made()
    for _ in range(steps):
        train(engine, 1)
        scheduler.step()
    engine.save_checkpoint(folder, tag="a", client_state={"scheduler": scheduler.state_dict()})
    dist.barrier()
    engine, scheduler = made()
    with with_dspatch():
        _, client = engine.load_checkpoint(folder)
        if restore:
            scheduler.load_state_dict(client["scheduler"])
        train(engine, 1)
        scheduler.step()
        train(engine, 1)
    base = engine.optimizer.optimizer
    return {"hooks": len(base._optimizer_step_pre_hooks), "lr": base.param_groups[0]["lr"]}
