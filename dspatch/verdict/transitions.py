"""What changed between save and load: stage, number of ranks, precision; and the exact way out for this release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout, ways
from dspatch.checkpoint.shard import FileFacts
from dspatch.errors import explain
from dspatch.live.attributes import class_names, flag
from dspatch.verdict.found import REFUSED, Preflight, Refusal


def stage_changed(saved: int, stage: int, folder: Path) -> Refusal:
    """Files of stage ``saved``, an engine of stage ``stage``."""
    if not ways.same_names(saved, stage):
        weights = (
            f"or take the weights only: {ways.fp32_command(folder.parent, folder.name)}, and load them into the model "
            "before deepspeed.initialize"
        )
    else:
        weights = f"or take the weights only: {ways.WEIGHTS_ONLY}" if stage else ""
    also = {1: " or 2", 2: " or 1"}.get(saved, "")
    return Refusal(
        REFUSED,
        explain(
            "the ZeRO stage changed between save and load",
            expected=f"a checkpoint of stage {stage}, as the engine is configured",
            found=f"files of stage {saved}",
            where=str(folder),
            do=(f"set zero_optimization.stage to {saved}{also}", weights),
        ),
    )


def world_changed(saved: int, now: int, folder: Path, stage: int) -> Refusal:
    """Files of ``saved`` data-parallel ranks; there are ``now``."""
    # At stage 3 every rank opens a model file of its own, so more ranks than at the save find none.
    weights = f"or take the weights only: {ways.WEIGHTS_ONLY}" if stage < 3 or now < saved else ""
    return Refusal(
        REFUSED,
        explain(
            "the number of data-parallel ranks changed between save and load",
            expected=f"a checkpoint of {now} data-parallel ranks, as many as there are now",
            found=f"a checkpoint of {saved}",
            where=str(folder),
            do=(
                f"load with {saved} ranks",
                f"or convert: {ways.universal_command(folder, stage)}",
                f"  and load it with {ways.universal_load(folder.name)}",
                weights,
            ),
        ),
    )


def precision_changed(saved: str, now: str, path: str) -> Refusal:
    """Optimizer state of a run in ``saved``, an engine in ``now``."""
    return Refusal(
        REFUSED,
        explain(
            "the precision changed between save and load",
            expected=f"optimizer state of a {now} run, as the engine is configured",
            found=f"that of a {saved} run",
            where=path,
            do=(f"configure {saved}", f"or take the weights only: {ways.WEIGHTS_ONLY}"),
        ),
    )


def other_precision(path: Path, model: FileFacts, engine: Any) -> Refusal | None:
    """The shard lies there under the name that another precision gives it."""
    bare = path.name.removeprefix("bf16_")
    other = path.with_name(bare if bare != path.name else f"bf16_{bare}")
    if not other.is_file():
        return None
    return precision_changed(model.precision or "fp16 or fp32", _precision(engine), str(other))


def unsharded_state(engine: Any, found: Preflight, model: FileFacts) -> Refusal | None:
    """Stage 0: the model file holds the optimizer state, in a form that depends on the precision."""
    wrapped = bool({"FP16_Optimizer", "FP16_UnfusedOptimizer"} & class_names(engine.optimizer))
    folder = Path(found.request.folder, found.request.tag or "")
    if model.optimizer is None:
        shards = any(layout.parse(one.name) is not None and "optim_states" in one.name for one in folder.iterdir())
        return stage_changed(model.stage or 2, 0, folder) if shards else None
    if (model.optimizer.style == "fp16") != wrapped:
        saved = model.precision or ("fp16 or bf16" if model.optimizer.style == "fp16" else "fp32")
        return precision_changed(saved, _precision(engine), model.path)
    return None


def _precision(engine: Any) -> str:
    return "bf16" if flag(engine, "bfloat16_enabled") else "fp16" if flag(engine, "fp16_enabled") else "fp32"
