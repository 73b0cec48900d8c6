"""Scenarios that run inside rank processes: checkpoints that other tests do not need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.support.engines import build_engine, train


def save_poisoned(folder: str, value: float, name: str = "exp_avg", everything: bool = False, **engine: Any) -> None:
    """Train two steps, overwrite moments on rank 1 (one element) or on all ranks (all elements), save."""
    made = build_engine(**engine)
    train(made, 2)
    for state in made.optimizer.optimizer.state.values():
        for key, tensor in state.items():
            if everything and key != "step":
                tensor.fill_(value)
            elif key == name and torch.distributed.get_rank() == 1:
                tensor.view(-1)[3] = value
    made.save_checkpoint(folder)


def save_client(folder: str, client: dict[str, Any], **engine: Any) -> None:
    """Train two steps and save with a client state."""
    made = build_engine(**engine)
    train(made, 2)
    made.save_checkpoint(folder, client_state=client)


def save_without_frozen(folder: str, **engine: Any) -> None:
    """Leave frozen parameters out of the files, as parameter-efficient training does."""
    made = build_engine(**engine)
    train(made, 2)
    made.save_checkpoint(folder, exclude_frozen_parameters=True)


def save_bare(folder: str) -> None:
    """Save an engine that has no optimizer: weights, and no training state was ever part of it."""
    import deepspeed

    torch.manual_seed(0)
    settings = {"train_micro_batch_size_per_gpu": 4, "steps_per_print": 10**6}
    made, *_ = deepspeed.initialize(model=torch.nn.Linear(7, 5), config=settings, dist_init_required=False)
    made.save_checkpoint(folder)


def save_pipeline(folder: str, stages: int, stage: int = 0, precision: str = "fp32") -> None:
    """Train and save a pipeline."""
    made, dtype = pipeline_engine(stages, stage, precision)
    for _ in range(2):
        made.train_batch(_batches(dtype))
    made.save_checkpoint(folder)


def pipeline_engine(stages: int, stage: int = 0, precision: str = "fp32", seed: int = 0) -> tuple[Any, torch.dtype]:
    """A pipeline with a function (no file), a layer without parameters (an empty file) and three linear layers."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    torch.manual_seed(seed)
    layers = [torch.nn.Linear(11, 17), torch.tanh, torch.nn.Linear(17, 17), torch.nn.Tanh(), torch.nn.Linear(17, 5)]
    net = PipelineModule(layers=layers, num_stages=stages, loss_fn=_loss, partition_method="uniform")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "steps_per_print": 10**6,
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": stage},
    }  # fmt: skip
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    made, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config, dist_init_required=False)
    return made, torch.bfloat16 if precision == "bf16" else torch.float32


def _loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.float() - targets).square().mean()


def _batches(dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        yield torch.randn(4, 11).to(dtype), torch.randn(4, 5)
