"""Engines whose ranks share sequences (Ulysses), replicas that are numbered like model-parallel ones. Runs inside ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.checkpoint.saving import experts_engine
from tests.support.engines import build_engine, train
from tests.support.inside import described, dspatch_or_not


class Ulysses:
    """The ``mpu`` of a job in which all ranks share each sequence.

    As in DeepSpeed's ``sequence_parallel/parallel_state_sp.py``, a rank's number in its sequence group is also what it
    calls its model-parallel one.
    """

    def __init__(self) -> None:
        self._all = dist.new_group(list(range(dist.get_world_size())))
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        self._alone = alone[dist.get_rank()]

    def get_sequence_parallel_group(self) -> Any:
        return self._all

    def get_sequence_parallel_world_size(self) -> int:
        return dist.get_world_size(self._all)

    def get_sequence_parallel_rank(self) -> int:
        return dist.get_rank(self._all)

    get_sequence_data_parallel_group = get_sequence_parallel_group
    get_sequence_data_parallel_world_size = get_sequence_parallel_world_size
    get_sequence_data_parallel_rank = get_sequence_parallel_rank
    get_model_parallel_rank = get_sequence_parallel_rank

    def get_model_parallel_world_size(self) -> int:
        return 1

    def get_model_parallel_group(self) -> Any:
        return self._alone

    def get_data_parallel_group(self) -> Any:
        return self._alone

    def get_data_parallel_world_size(self) -> int:
        return 1

    def get_data_parallel_rank(self) -> int:
        return 0


class Megatron(Ulysses):
    """The same, with a model-parallel number that is one: there is no such split, so every rank has the first."""

    def get_model_parallel_rank(self) -> int:
        return 0


def load(
    folder: str, kind: str, shared_before: bool, settings: dict[str, Any] | None, arguments: dict[str, Any],
    numbered: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Save with or without shared sequences, load into an engine that shares them.

    Args:
        numbered: the model-parallel rank is that in the sequence group.

    Returns:
        ``error`` (class, text) or None, its ``notes``, ``path``, and whether the ``weights`` are the saved ones.
    """
    mpu = Ulysses() if numbered else Megatron()
    engine = _made(kind, 0, mpu if shared_before else None)
    if not shared_before:
        train(engine, 2)
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    fresh = _made(kind, 1, mpu)
    path, error, notes = None, None, ()
    with dspatch_or_not(settings):
        try:
            path, _ = fresh.load_checkpoint(folder, tag="a", **arguments)
        except Exception as raised:
            error, notes = described(raised)
    pairs = zip(engine.module.parameters(), fresh.module.parameters(), strict=True)
    return {"error": error, "notes": notes, "path": bool(path), "weights": all(torch.equal(a, b) for a, b in pairs)}


def _made(kind: str, seed: int, mpu: Any) -> Any:
    return experts_engine(ep_size=1, seed=seed, mpu=mpu) if kind == "experts" else build_engine(stage=1, seed=seed, mpu=mpu)
