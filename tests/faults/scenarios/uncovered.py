"""Engines whose state dspatch does not measure yet, saved and loaded under the guard. Runs inside ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.checkpoint.saving import experts_engine
from tests.offline.saving import pipeline_engine
from tests.support.engines import train
from tests.support.inside import described, dspatch_or_not, with_dspatch


def load(folder: str, kind: str) -> dict[str, Any]:
    """Save one engine, load it into another one with other weights.

    Returns:
        ``outcomes`` of the report, and whether ``weights`` are the saved ones.
    """
    engine = _made(kind, 0)
    if kind == "experts":
        train(engine, 2)
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    fresh = _made(kind, 1)
    with with_dspatch() as dspatch:
        path, _ = fresh.load_checkpoint(folder, tag="a")
        report = dspatch.last_report(fresh)
    one, other = (list(made.module.parameters()) for made in (engine, fresh))
    return {
        "path": bool(path),
        "outcomes": {} if report is None else {name: str(said) for name, said in report.outcomes.items()},
        "weights": all(torch.equal(a, b) for a, b in zip(one, other, strict=True)),
    }


def save_split(folder: str, kind: str, trained: bool = True, **made: Any) -> None:
    """Save experts or a pipeline that are dealt out as ``made`` says."""
    engine = _split(kind, 0, **made)
    if trained:
        _train(engine)
    engine.save_checkpoint(folder, tag="a")


def load_split(
    folder: str, kind: str, settings: dict[str, Any] | None, arguments: dict[str, Any] | None = None,
    probe: bool = True, **made: Any,
) -> dict[str, Any]:  # fmt: skip
    """Load into an engine that deals them out as ``made`` says, and take one step without a learning rate.

    Returns:
        ``error`` (class, text) or None, ``path``, ``moved``: numbers of parameters that the step changed,
        ``stale``: groups whose masters do not fit the weights, where they are easily told.
    """
    engine = _split(kind, 1, **made)
    path, error, notes = None, None, ()
    with dspatch_or_not(settings):
        try:
            path, _ = engine.load_checkpoint(folder, tag="a", **(arguments or {}))
        except Exception as raised:
            error, notes = described(raised)
    before = [param.detach().clone() for param in engine.module.parameters()]
    moved: list[int] = []
    if path and probe:
        base = getattr(engine.optimizer, "optimizer", engine.optimizer)
        for group in (*engine.optimizer.param_groups, *base.param_groups):
            group["lr"] = group["weight_decay"] = 0.0
        _train(engine)
        after = list(engine.module.parameters())
        moved = [number for number, one in enumerate(before) if not torch.equal(one, after[number])]
    found = {"error": error, "notes": notes, "path": bool(path), "moved": moved, "stale": _stale(engine)}
    return {**found, **_masters(engine, folder)} if kind == "mics" else found


def _masters(engine: Any, folder: str) -> dict[str, Any]:
    """Sums of this rank's ZeRO-3 masters, live and in its file."""
    path = f"{folder}/a/bf16_zero_pp_rank_{dist.get_rank(engine.optimizer.dp_process_group)}_mp_rank_00_optim_states.pt"
    filed = torch.load(path, weights_only=False)["optimizer_state_dict"]["fp32_flat_groups"]
    live = engine.optimizer.fp32_partitioned_groups_flat
    return {"masters": [float(one.sum()) for one in live], "filed": [float(one.sum()) for one in filed]}


def _stale(engine: Any) -> list[int]:
    """Groups of ``BF16_Optimizer`` whose masters are not those of this rank's weights; of other optimizers none."""
    optimizer = engine.optimizer
    found = []
    for number, master in enumerate(getattr(optimizer, "fp32_groups_flat_partition", ())):
        rank = dist.get_rank(optimizer.real_dp_process_group[number])
        weights = optimizer.bf16_partitioned_groups[number][rank]
        if not torch.equal(master.to(weights.dtype).view(torch.int16), weights.view(torch.int16)):
            found.append(number)
    return found


def _split(kind: str, seed: int, **made: Any) -> Any:
    if kind == "experts":
        return experts_engine(seed=seed, **made)
    if kind == "tied":
        return _tied_pipeline(seed)
    if kind == "mics":
        return _mics(seed)
    return pipeline_engine(seed=seed, **made)[0]


def _mics(seed: int) -> Any:
    """ZeRO-3 with MiCS: every parameter lies whole on a sub-group of ranks."""
    import deepspeed

    from tests.support.models import TinyNet

    config = {
        "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10**6, "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": 3, "mics_shard_size": 2},
    }  # fmt: skip
    torch.manual_seed(seed)
    with deepspeed.zero.MiCS_Init(config_dict_or_path=config):
        model = TinyNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]


def _train(engine: Any) -> None:
    if hasattr(engine, "train_batch"):
        engine.train_batch(iter([(torch.randn(4, 11).to(next(engine.module.parameters()).dtype), torch.randn(4, 5))]))
    else:
        train(engine, 1)


def _tied_pipeline(seed: int) -> Any:
    """A pipeline whose tied layer is only ever used through functions of the caller's."""
    import deepspeed
    from deepspeed.pipe import PipelineModule, TiedLayerSpec

    torch.manual_seed(seed)
    tied = [TiedLayerSpec("square", torch.nn.Linear, 11, 11, forward_fn=lambda layer, inputs: layer(inputs)) for _ in "ab"]
    layers = [*tied, torch.nn.Linear(11, 5)]
    net = PipelineModule(layers=layers, num_stages=1, loss_fn=lambda out, target: (out - target).square().mean())
    config = {"train_micro_batch_size_per_gpu": 4, "steps_per_print": 10**6, "gradient_accumulation_steps": 1}
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    return deepspeed.initialize(model=net, optimizer=optimizer, config=config, dist_init_required=False)[0]


def unsaved(folder: str, settings: dict[str, Any] | None) -> dict[str, Any]:
    """Save and load the tied pipeline.

    Returns:
        ``lost``: names of parameters that are not the saved ones.
    """
    engine = _tied_pipeline(0)
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    fresh = _tied_pipeline(1)
    with dspatch_or_not(settings):
        fresh.load_checkpoint(folder, tag="a")
    both = zip(engine.module.named_parameters(), fresh.module.parameters(), strict=True)
    return {"lost": [name for (name, one), other in both if not torch.equal(one, other)]}


def _made(kind: str, seed: int) -> Any:
    if kind == "experts":
        return experts_engine(2, seed=seed)
    if kind == "pipeline":
        return pipeline_engine(2, seed=seed)[0]
    import deepspeed

    torch.manual_seed(seed)
    config = {"train_micro_batch_size_per_gpu": 4, "steps_per_print": 10**6}
    return deepspeed.initialize(model=torch.nn.Linear(7, 5), config=config, dist_init_required=False)[0]
