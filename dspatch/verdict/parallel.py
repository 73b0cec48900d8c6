"""Experts and pipelines before the load: their state is not measured, but files of another split can be told.

DeepSpeed restores partitions by rank. With experts or pipeline stages dealt out otherwise, a partition of the same size
holds other parameters, and nothing upstream compares (``DeepSpeedEngine._load_zero_checkpoint``,
``SDLoaderBase.load``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout, ways
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.unpickle import Tree, read_tree
from dspatch.errors import explain
from dspatch.live.attributes import class_names, data_rank, flag
from dspatch.verdict.found import REFUSED, Preflight, Refusal
from dspatch.verdict.request import Request


def other_split(engine: Any, found: Preflight) -> Refusal | None:
    """A refusal when experts or pipeline stages were dealt out otherwise at the save; None also where nothing tells."""
    folder = Path(found.request.folder, found.request.tag or "")
    stage = int(engine.zero_optimization_stage())
    if "PipelineEngine" in class_names(engine):
        model = _tree(folder / layout.model_file(min(stage, 2)))
        return _other_depth(engine, found.request, model) if model is not None else None
    dp_rank, _ = data_rank(engine)
    model = _tree(folder / layout.model_file(stage, dp_rank=dp_rank))
    if model is not None and (refusal := _oldest_experts(engine, model)) is not None:
        return refusal
    if not found.request.asks_optimizer:
        return None
    shard = _tree(folder / layout.shard_file(dp_rank, bf16=flag(engine, "bfloat16_enabled")))
    return _other_experts(engine, shard) if shard is not None else None


def _tree(path: Path) -> Tree | None:
    """A file's tree; None where it is not there or not readable, which DeepSpeed itself will say."""
    try:
        return read_tree(path) if path.is_file() else None
    except (Damaged, OSError):
        return None


def _other_depth(engine: Any, request: Request, model: Tree) -> Refusal | None:
    saved, now = model.get(("mp_world_size",)), int(engine.mp_world_size)
    if not isinstance(saved, int) or saved == now or not request.asks_optimizer:
        return None
    return Refusal(
        REFUSED,
        explain(
            "the pipeline was cut into another number of stages at the save: every rank would read another one's state",
            expected=f"a checkpoint of {now} model-parallel ranks (pipeline stages times tensor-parallel ranks)",
            found=f"a checkpoint of {saved}",
            where=model.path,
            do=(f"load with {saved} model-parallel ranks", f"or take the weights only: {ways.WEIGHTS_ONLY}"),
        ),
    )


def _other_experts(engine: Any, shard: Tree) -> Refusal | None:
    """``partition_count``: ranks that share each group, which for experts is the world divided by ``ep_size``."""
    saved = shard.get(("optimizer_state_dict", "partition_count"))
    now = getattr(engine.optimizer, "partition_count", None)
    if not isinstance(saved, list) or not isinstance(now, list) or saved == now:
        return None
    return Refusal(
        REFUSED,
        explain(
            "the experts were dealt out otherwise at the save: every rank would get other experts' masters and moments",
            expected=f"groups cut into {now} partitions, as with this engine's ep_size and number of ranks",
            found=f"groups cut into {saved}",
            where=shard.path,
            do=("use the ep_size and the number of ranks of the run that saved",
                f"or take the weights only: {ways.WEIGHTS_ONLY}"),
        ),
    )  # fmt: skip


def _oldest_experts(engine: Any, model: Tree) -> Refusal | None:
    """Of files with one number of experts for all layers, DeepSpeed takes experts by the wrong rank."""
    saved = model.get(("num_experts",))
    if not isinstance(saved, int) or not flag(engine, "has_moe_layers"):
        return None
    return Refusal(
        REFUSED,
        explain(
            "the experts of this checkpoint are in the oldest format, of which DeepSpeed loads the wrong ones",
            expected="num_experts as a list, one number for each layer of experts",
            found=f"num_experts {saved}",
            where=model.path,
            do="load and save it again with ep_size 1, in the release that wrote it",
        ),
    )
