"""The files that this rank needs: whether they are there and whole; then, whether they fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout, ways
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.shard import facts_of
from dspatch.checkpoint.unpickle import read_tree
from dspatch.errors import explain, shorten
from dspatch.live.attributes import class_names, data_rank, flag, rank_in
from dspatch.verdict import sentences
from dspatch.verdict.fitting import does_not_fit
from dspatch.verdict.found import REFUSED, Preflight, Refusal, tags_there
from dspatch.verdict.transitions import other_precision, stage_changed, world_changed


def read_files(engine: Any, found: Preflight) -> Refusal | None:
    """Read the index of this rank's files into ``found.files``; a refusal when one is absent, damaged or does not fit."""
    request, stage = found.request, int(engine.zero_optimization_stage())
    folder = Path(request.folder, request.tag or "")
    dp_rank, dp_size = data_rank(engine)
    mp_rank = _mp_rank(engine)
    if stage == 3 and (refusal := _blocks(engine)) is not None:
        return refusal
    if "DeepSpeedZeRoOffload" in class_names(engine.optimizer) and request.asks_optimizer:
        return _no_optimizer(folder)
    model = folder / layout.model_file(stage, mp_rank, dp_rank)
    wanted = {"model": model}
    if not model.is_file():
        return _numbered_by_sequence(engine, mp_rank, model) or _absent_file(folder, model, stage, dp_size, None)
    sharded = stage > 0 or "BF16_Optimizer" in class_names(engine.optimizer)
    asks_shard = request.asks_optimizer and engine.optimizer is not None
    # At stage 3 the weights, too, come from the masters of the shard.
    if sharded and (asks_shard or stage == 3):
        wanted["shard"] = folder / layout.shard_file(dp_rank, mp_rank, flag(engine, "bfloat16_enabled"))
    for role, path in wanted.items():
        try:
            if role == "shard" and not path.is_file():
                other = _other_name(path)
                if other is None and not asks_shard:
                    continue  # DeepSpeed puts the weights together from whatever shards there are
                if other is None:
                    model_facts = facts_of(found.files["model"])
                    return other_precision(path, model_facts, engine) or _absent_file(
                        folder, path, stage, dp_size, model_facts.dp_world_size
                    )
                path = other
            found.files[role] = read_tree(path)
        except Damaged as error:
            return Refusal(REFUSED, explain("a file of this tag is damaged", found=error.why, where=str(path),
                                            do=tags_there(request.folder)))  # fmt: skip
        except OSError as error:
            return Refusal(REFUSED, explain("a file of this tag cannot be read", found=str(error.strerror),
                                            where=str(path)))  # fmt: skip
    return does_not_fit(engine, found, stage, dp_rank, dp_size, sharded, asks_shard)


def _blocks(engine: Any) -> Refusal | None:
    """``pipeline_loading_checkpoint``: ranks load one after the other, each told by the one before it on its node.

    The last rank of a node tells the first one of the next, which does not listen (``_load_zero_checkpoint``).
    """
    config = getattr(getattr(engine, "_config", None), "zero_config", None)
    rank, _ = rank_in(None)
    if not getattr(config, "pipeline_loading_checkpoint", False) or rank == 0 or os.environ.get("LOCAL_RANK") != "0":
        return None
    return Refusal(
        REFUSED,
        explain(
            "pipeline_loading_checkpoint blocks the load on more than one node",
            expected="all ranks on one node",
            found=f"rank {rank} is the first of another node",
            do="leave pipeline_loading_checkpoint out of zero_optimization",
        ),
    )


def _no_optimizer(folder: Path) -> Refusal:
    return Refusal(
        REFUSED,
        explain(
            "this engine has no optimizer, and the load asks for its state",
            expected="an engine with an optimizer, or a load of weights alone",
            found="ZeRO-3 without an optimizer, with which DeepSpeed reads no checkpoint",
            where=str(folder),
            do=f"take the weights only: {ways.WEIGHTS_ONLY}",
        ),
    )


def _other_name(path: Path) -> Path | None:
    """The shard under the name of another precision or an older release, which DeepSpeed reads too."""
    old = path.with_name(path.name.replace("_optim_states.pt", "optim_states.pt"))
    return old if old.is_file() else None


def _mp_rank(engine: Any) -> int:
    own = getattr(engine, "checkpoint_mp_rank", None)
    if own is not None:
        return int(own)
    mpu = getattr(engine, "mpu", None)
    return 0 if mpu is None else int(mpu.get_model_parallel_rank())


def _numbered_by_sequence(engine: Any, mp_rank: int, model: Path) -> Refusal | None:
    """A rank that looks for the model file of a model-parallel part that there is none of.

    Ulysses' ``mpu`` gives a rank's number in its sequence group as its model-parallel one, and ``_load_checkpoint`` took
    that until commit b39e07a71.
    """
    if mp_rank == 0 or int(getattr(engine, "mp_world_size", 0)) != 1:
        return None
    return Refusal(
        REFUSED,
        explain(
            sentences.SEQUENCE_RANKS,
            expected=model.name,
            found="a model without model-parallel parts, which has one such file",
            where=str(model.parent),
            do=(sentences.NEWER, "or an mpu whose get_model_parallel_rank() is 0 on every rank"),
        ),
    )


def _absent_file(folder: Path, path: Path, stage: int, dp_size: int, saved_size: int | None) -> Refusal:
    """This rank's file is not there: because of another stage, another world size, or because it was lost.

    ``saved_size``: data-parallel ranks at save as the model file says; None: it was not read or does not say, and the
    number of shards has to tell.
    """
    roles = [role for role in (layout.parse(one.name) for one in folder.iterdir()) if role is not None]
    parts = {role.dp_rank for role in roles if role.kind == "model_part"}
    whole = any(role.kind == "model" and role.dp_rank is None for role in roles)
    saved = 3 if parts and not whole else None
    if whole and not parts:
        saved = min(stage, 2) if any(role.kind == "shard" for role in roles) else 0
    if saved is not None and saved != stage and (saved == 3 or stage == 3 or saved == 0):
        return stage_changed(saved, stage, folder)
    shards = {role.dp_rank for role in roles if role.kind == "shard"}
    if saved_size is None and shards and max(one or 0 for one in shards) + 1 == len(shards):
        saved_size = len(shards)
    if saved_size is not None and saved_size < dp_size:
        return world_changed(saved_size, dp_size, folder, stage)
    elsewhere = _elsewhere(folder, path.name)
    return Refusal(
        REFUSED,
        explain(
            "a file that this rank needs is not there",
            expected=path.name,
            found=f"{len(roles)} other DeepSpeed files in the folder" if roles else "no DeepSpeed file in the folder",
            where=str(folder),
            do=(
                f"what may be it lies at {shorten(elsewhere, 2)}: if it is of this save, move it to {path}"
                if elsewhere
                else "",
                "with node-local disks every node needs its own ranks' files: use_node_local_storage in the configuration of "
                "both runs, or copy them here",
            ),
        ),
    )


def _elsewhere(folder: Path, name: str) -> list[str]:
    """Where a file of the tag may have been left: in folders inside it, in siblings that go by its name, half-named."""
    inside = [*folder.glob(f"*/{name}"), *folder.glob(f"{name}.*"), *folder.glob(f".{name}*")]
    beside = [
        found
        for found in folder.parent.glob(f"*/{name}")
        if found.parent != folder and (folder.name in found.parent.name or layout.is_temporary(found.parent.name))
    ]
    return [str(found) for found in (*sorted(inside), *sorted(beside))]
