"""Loads into engines that have trained: rollbacks, between two steps or in the middle of one. Runs inside ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from tests.faults.scenarios.models import build_engine
from tests.support.engines import train
from tests.support.inside import dspatch_or_not, with_dspatch
from tests.support.models import TinyNet, batch

ACCUMULATION = 4


def roll_back(folder: str, engine: dict[str, Any], settings: dict[str, Any] | None, micro: int = 0) -> dict[str, Any]:
    """Train past a checkpoint, run ``micro`` micro-batches more, load it; and load it into a fresh engine. Two steps each.

    Returns:
        ``error`` (class, text) or None, ``report``: outcomes by component, ``same``: whether both engines have the same losses.
    """
    kinds = {"accumulation": ACCUMULATION, **engine}
    made = build_engine(seed=1, **kinds)
    train(made, 2)
    made.save_checkpoint(folder, tag="a")
    train(made, 2)
    _micro_batches(made, micro)
    dist.barrier()
    fresh = build_engine(seed=2, **kinds)
    fresh.load_checkpoint(folder)
    error, report = None, None
    with dspatch_or_not(settings) as dspatch:
        try:
            made.load_checkpoint(folder)
        except RuntimeError as raised:
            error = (type(raised).__name__, str(raised))
        report = dspatch.last_report(made) if dspatch is not None else None
    losses = [train(one, 2, first=2) for one in (made, fresh)]
    return {
        "error": error,
        "report": None if report is None else {name: one.word for name, one in report.outcomes.items()},
        "table": str(report),
        "same": losses[0] == losses[1],
    }


def _micro_batches(engine: Any, count: int) -> None:
    dtype = next(engine.module.parameters()).dtype
    for micro in range(count):
        engine.backward(engine(*batch(0, 99, micro, dist.get_rank(), 4, dtype)))
        engine.step()


def sampled(folder: str, saved: bool, now: bool) -> dict[str, Any]:
    """Save and load with DeepSpeed's curriculum sampler, on either side or on both.

    Returns:
        ``error`` (class, text) or None, ``report``: outcomes by component, ``samples``: consumed by the samplers of both engines.
    """
    engine = _with_data(f"{folder}/clusters", 1, saved)
    dtype = next(engine.module.parameters()).dtype
    batches = iter(engine.training_dataloader) if saved else iter(())
    for step in range(3):
        inputs, targets = next(batches, None) or batch(0, step, 0, dist.get_rank(), 8, dtype)
        engine.backward(engine(inputs.to(dtype), targets))
        engine.step()
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    fresh = _with_data(f"{folder}/clusters", 2, now)
    error = None
    with with_dspatch() as dspatch:
        try:
            fresh.load_checkpoint(folder)
        except RuntimeError as raised:
            error = (type(raised).__name__, str(raised))
        report = dspatch.last_report(fresh)
    return {
        "error": error,
        "report": None if report is None else {name: one.word for name, one in report.outcomes.items()},
        "samples": [one.training_dataloader.data_sampler.consumed_samples for one in (engine, fresh)] if saved and now else [],
    }


def _with_data(folder: str, seed: int, curriculum: bool) -> Any:
    import deepspeed
    import torch

    metric = {
        "difficulty_type": "value", "clustering_type": "single_cluster", "min_difficulty": 1, "max_difficulty": 4,
        "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 8, "difficulty_step": 1},
    }  # fmt: skip
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 8, "steps_per_print": 10**6, "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
    }  # fmt: skip
    if curriculum:
        learning = {"enabled": True, "data_cluster_path": folder, "curriculum_metrics": {"length": metric}}
        sampling = {"enabled": True, "num_epochs": 10, "num_workers": 0, "curriculum_learning": learning}
        config["data_efficiency"] = {"enabled": True, "seed": 1, "data_sampling": sampling}
    torch.manual_seed(seed)
    model = TinyNet()
    inputs, targets = batch(0, 0, 0, 0, 64, torch.float32)
    made: Any = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config=config, dist_init_required=False,
        training_data=torch.utils.data.TensorDataset(inputs, targets),
    )  # fmt: skip
    return made[0]
