"""One rank of a demo job. Run as a script, by path, so that nothing of dspatch is imported unless the job says so.

``python rank.py JOB.json``; rank 0 writes ``{"losses": [...], "error": ..., "said": [...]}`` to the file that the job
names. The loss is that of one fixed batch after each step, in fp32, so that curves show the model and not the data.
"""

from __future__ import annotations

import json
import logging
import pkgutil
import sys
from pathlib import Path
from typing import Any

INPUTS, WIDTH, OUTPUTS = 8, 48, 4
BATCH = 32


def main(job: dict[str, Any]) -> None:
    """Train, save and load as the job says."""
    said = _listen()
    if job["dspatch"]:
        __import__("dspatch")
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    if job.get("without_operators"):
        _without_operators(deepspeed)
    kind = type(get_accelerator())
    kind.is_fp16_supported = lambda self: True  # DeepSpeed refuses fp16 on CPU; all that a checkpoint is about works
    deepspeed.init_distributed(dist_backend="gloo")
    engine, losses, error = _engine(job), [], None
    try:
        for action, value in job["actions"]:
            losses += _act(engine, action, value, job)
    except Exception as raised:
        # Without the notes that tell the ranks apart, so that one can see that all raise the same.
        error = f"{type(raised).__name__}: {raised}"
    import torch.distributed as dist

    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, error)
    if dist.get_rank() == 0:
        Path(job["result"]).write_text(json.dumps({"losses": losses, "error": answers, "said": said}), encoding="utf-8")


def _without_operators(deepspeed: Any) -> None:
    """Have DeepSpeed compile nothing in this process; its collectives on CPU then go by gloo.

    Compiling takes up to a minute, and a build that is ended in the middle leaves a lock on which every later start waits.
    """
    compatible = deepspeed.ops.__compatible_ops__
    for name in compatible:
        compatible[name] = False


def _act(engine: Any, action: str, value: Any, job: dict[str, Any]) -> list[float]:
    """Do one step of a job; returns the losses that came with it."""
    if action == "train":
        return [_step(engine, number) for number in range(*value)]
    if action == "save":
        engine.save_checkpoint(job["folder"], tag=value)
    elif action == "load":
        engine.load_checkpoint(job["folder"], tag=value, **job["load"])
        return [_evaluate(engine)]
    elif action == "call":
        _on_rank_0(*value)
    elif action == "spoil":
        for group in engine.optimizer.param_groups:
            group["lr"] = value
    return []


def _on_rank_0(function: str, *arguments: str) -> None:
    """Call a function by its full name on rank 0, while the others wait."""
    import torch.distributed as dist

    if dist.get_rank() == 0:
        pkgutil.resolve_name(function)(*arguments)
    dist.barrier()


def _engine(job: dict[str, Any]) -> Any:
    import deepspeed
    import torch

    torch.manual_seed(job["seed"])
    module = _Net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=4e-3, betas=(0.9, 0.999), weight_decay=0.0)
    return deepspeed.initialize(
        model=module, optimizer=optimizer, config=job["config"], model_parameters=list(module.parameters()),
        dist_init_required=False,
    )[0]  # fmt: skip


def _Net() -> Any:
    import torch
    from torch.utils.checkpoint import checkpoint

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(INPUTS, WIDTH)
            self.middle = torch.nn.Linear(WIDTH, WIDTH)
            self.last = torch.nn.Linear(WIDTH, OUTPUTS)

        def forward(self, inputs: Any, targets: Any) -> Any:
            hidden = torch.tanh(self.first(inputs))
            hidden = hidden + torch.tanh(checkpoint(self.middle, hidden, use_reentrant=False))
            return (self.last(hidden).float() - targets).square().mean()

    return Net()


def _batch(number: int, engine: Any) -> tuple[Any, Any]:
    import torch

    random = torch.Generator().manual_seed(number)
    inputs = torch.randn(BATCH, INPUTS, generator=random)
    mixing = torch.randn(INPUTS, OUTPUTS, generator=torch.Generator().manual_seed(7))
    dtype = next(engine.module.parameters()).dtype
    return inputs.to(dtype), torch.sin(inputs @ mixing / INPUTS**0.5)


def _step(engine: Any, number: int) -> float:
    import torch.distributed as dist

    loss = engine(*_batch(1000 + number * dist.get_world_size() + dist.get_rank(), engine))
    engine.backward(loss)
    engine.step()
    if engine.zero_optimization_stage() == 0:
        # Some releases do not clear gradients of bf16 at stage 0; that is another fault than the one shown.
        engine.module.zero_grad(set_to_none=True)
    return _evaluate(engine)


def _evaluate(engine: Any) -> float:
    import torch

    with torch.no_grad():
        return sum(float(engine(*_batch(number, engine))) for number in range(8)) / 8


def _listen() -> list[str]:
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(f"{record.levelname}: {record.getMessage()}")

    logger = logging.getLogger("dspatch")
    logger.addHandler(Keep(logging.INFO))
    logger.setLevel(logging.INFO)
    return said


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
