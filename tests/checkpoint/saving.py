"""Scenarios that run inside rank processes: train a tiny engine and save a real checkpoint."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.engines import build_engine, train


def save(folder: str, tag: str | None = None, steps: int = 3, more: int = 0, client: Any = None, **engine: Any) -> None:
    """Build an engine, train ``steps`` steps, save; then ``more`` steps and a second tag (DeepSpeed's default name).

    Args:
        folder: the checkpoint folder.
        tag: of the first save; None: DeepSpeed's default name.
        client: the client state of the first save.
        engine: keyword arguments of ``build_engine``.
    """
    made = build_engine(**engine)
    train(made, steps)
    made.save_checkpoint(folder, tag=tag, client_state=client or {})
    if more:
        train(made, more)
        made.save_checkpoint(folder)


def save_experts(folder: str, ep_size: int, experts: int = 4, tag: str | None = None, **engine: Any) -> None:
    """The same for a model with one layer of experts."""
    made = experts_engine(ep_size, experts, **engine)
    train(made, 2)
    made.save_checkpoint(folder, tag=tag)


def experts_engine(ep_size: int, experts: int = 4, seed: int = 0, outside: bool = False, **engine: Any) -> Any:
    """An engine with one layer of experts; ``stage`` is 2 by default.

    ``outside``: a parameter that belongs to no expert has the word in its name; ``precision`` is bf16 by default.
    """
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(11, 16)
            expert = torch.nn.Linear(16, 16)
            self.moe = MoE(16, expert, num_experts=experts, ep_size=ep_size, k=1, min_capacity=0)
            self.last = torch.nn.Linear(16, 5)
            if outside:
                self.expert_scale = torch.nn.Parameter(torch.rand(16))

        def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            hidden = self.first(inputs)
            mixed, loss, _ = self.moe(hidden * self.expert_scale if outside else hidden)
            return (self.last(mixed).float() - targets).square().mean() + 0.01 * loss.float()

    torch.manual_seed(seed)
    model = Experts()
    import deepspeed

    params = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    config = {
        "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10**6, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, "bf16": {"enabled": engine.get("precision", "bf16") == "bf16"},
        "zero_optimization": {"stage": engine.get("stage", 2)}, **engine.get("config", {}),
    }  # fmt: skip
    optimizer = torch.optim.AdamW(params, lr=1e-3)
    made, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False, mpu=engine.get("mpu")
    )
    return made
