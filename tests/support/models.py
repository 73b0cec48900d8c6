"""Tiny seeded models and a learnable task, in shapes that break flat-buffer code: odd sizes, ties, frozen parts."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

INPUTS, OUTPUTS = 11, 5


class TinyNet(nn.Module):
    """Linear, LayerNorm and more Linear layers with biases; ``forward`` returns the loss in fp32.

    Args:
        width: features inside; odd by default, so that no partition is aligned by luck.
        depth: square layers in the middle.
        tied: the last two square layers share one weight.
        frozen: the first layer is not trained.
        unused: has a trained layer that ``forward`` never reaches.
        checkpointing: recompute the square layers in backward.
        empty: has trained parameters without elements.
    """

    def __init__(
        self, width: int = 17, depth: int = 2, tied: bool = False, frozen: bool = False, unused: bool = False,
        checkpointing: bool = False, empty: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.first = nn.Linear(INPUTS, width)
        self.norm = nn.LayerNorm(width)
        self.middle = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, OUTPUTS)
        self.register_buffer("batches", torch.zeros((), dtype=torch.float32))
        if tied:
            self.middle[-1].weight = self.middle[-2].weight
        if frozen:
            self.first.requires_grad_(False)
        if unused:
            self.unused = nn.Linear(3, 3)
        if empty:
            self.nothing = nn.Parameter(torch.empty(0))
            self.nothing_wide = nn.Parameter(torch.empty(0, 3))
        self._checkpointing = checkpointing

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of the prediction for ``inputs`` (batch, INPUTS)."""
        self.batches += 1
        hidden = self.norm(self.first(inputs))
        inside = partial(checkpoint, self._inside, use_reentrant=False) if self._checkpointing else self._inside
        hidden = inside(hidden)
        return (self.last(hidden).float() - targets).square().mean()

    def _inside(self, hidden: Tensor) -> Tensor:
        for layer in self.middle:
            hidden = hidden + torch.tanh(layer(hidden))
        return hidden


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023) in plain torch: one moment, so it has ``exp_avg`` and no ``exp_avg_sq``."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99),
                 weight_decay: float = 0.0) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Sign of the interpolated moment, decoupled weight decay."""
        for group in self.param_groups:
            fast, slow = group["betas"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                moment = self.state[param].setdefault("exp_avg", torch.zeros_like(param))
                update = (moment * fast + param.grad * (1 - fast)).sign()
                param.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                moment.mul_(slow).add_(param.grad, alpha=1 - slow)


def batch(seed: int, step: int, micro: int, rank: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The micro-batch of one rank: a function of its arguments alone, so a resumed run sees what it would have seen.

    Returns:
        Inputs (size, INPUTS) in ``dtype`` and targets (size, OUTPUTS) in fp32, from a fixed smooth function.
    """
    random = torch.Generator().manual_seed(((seed * 100_003 + step) * 101 + micro) * 1009 + rank)
    inputs = torch.randn(size, INPUTS, generator=random)
    mixing = torch.randn(INPUTS, OUTPUTS, generator=torch.Generator().manual_seed(4242))
    return inputs.to(dtype), torch.sin(inputs @ mixing)
