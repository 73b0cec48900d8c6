"""The files that this rank needs: whether they are there, whole, its own, and fit the engine.

The texts name what changed between save and load (stage, number of ranks, precision) and the way out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout, swap, ways
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.shard import FileFacts, facts_of, rank_of, saved_as
from dspatch.checkpoint.unpickle import Tree, read_tree
from dspatch.errors import explain, shorten
from dspatch.live.attributes import base_optimizer, class_names, flag, rank_in
from dspatch.live.swapped import swap_names, swap_rank
from dspatch.verdict.found import REFUSED, Preflight, Refusal, tags_there
from dspatch.verdict.matching import ONE_PROCESS
from dspatch.verdict.placement import wrong_numbers, wrong_places


def read_files(engine: Any, found: Preflight) -> Refusal | None:
    """Read the index of this rank's files into ``found.files``; a refusal when one is absent, damaged or does not fit."""
    request, stage = found.request, int(engine.zero_optimization_stage())
    folder = Path(request.folder, request.tag or "")
    dp_group = getattr(engine.optimizer, "dp_process_group", None)
    # At stage 3 an engine without optimizer has no group of its own, and every rank reads a file of its own all the same.
    dp_rank, dp_size = rank_in(dp_group) if dp_group is not None or stage == 3 else (0, 1)
    mp_rank = _mp_rank(engine)
    if stage == 3 and (refusal := _blocks(engine)) is not None:
        return refusal
    if "DeepSpeedZeRoOffload" in class_names(engine.optimizer) and request.optimizer_states and not request.module_only:
        return _no_optimizer(folder)
    model = folder / layout.model_file(stage, mp_rank, dp_rank)
    wanted = {"model": model}
    if not model.is_file():
        return _absent_file(folder, model, stage, dp_size, None)
    sharded = stage > 0 or "BF16_Optimizer" in class_names(engine.optimizer)
    asks_shard = request.optimizer_states and not request.module_only and base_optimizer(engine) is not None
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
                    return _other_precision(path, model_facts, engine) or _absent_file(
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
    return _does_not_fit(engine, found, stage, dp_rank, dp_size, sharded, asks_shard)


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
        return Refusal(REFUSED, _stage_changed(saved, stage, folder))
    shards = {role.dp_rank for role in roles if role.kind == "shard"}
    if saved_size is None and shards and max(one or 0 for one in shards) + 1 == len(shards):
        saved_size = len(shards)
    if saved_size is not None and saved_size < dp_size:
        return Refusal(REFUSED, _world_changed(saved_size, dp_size, folder, stage))
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


def _stage_changed(saved: int, stage: int, folder: Path) -> str:
    if not ways.same_names(saved, stage):
        weights = (
            f"or take the weights only: {ways.fp32_command(folder.parent, folder.name)}, and load them into the model "
            "before deepspeed.initialize"
        )
    else:
        weights = f"or take the weights only: {ways.WEIGHTS_ONLY}" if stage else ""
    also = {1: " or 2", 2: " or 1"}.get(saved, "")
    return explain(
        "the ZeRO stage changed between save and load",
        expected=f"a checkpoint of stage {stage}, as the engine is configured",
        found=f"files of stage {saved}",
        where=str(folder),
        do=(f"set zero_optimization.stage to {saved}{also}", weights),
    )


def _world_changed(saved: int, now: int, folder: Path, stage: int) -> str:
    # At stage 3 every rank opens a model file of its own, so more ranks than at the save find none.
    weights = f"or take the weights only: {ways.WEIGHTS_ONLY}" if stage < 3 or now < saved else ""
    return explain(
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
    )


def _precision_changed(saved: str, now: str, path: str) -> Refusal:
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


def _precision(engine: Any) -> str:
    return "bf16" if flag(engine, "bfloat16_enabled") else "fp16" if flag(engine, "fp16_enabled") else "fp32"


def _other_precision(path: Path, model: FileFacts, engine: Any) -> Refusal | None:
    """The shard lies there under the name that another precision gives it."""
    bare = path.name.removeprefix("bf16_")
    other = path.with_name(bare if bare != path.name else f"bf16_{bare}")
    if not other.is_file():
        return None
    return _precision_changed(model.precision or "fp16 or fp32", _precision(engine), str(other))


def _unsharded_state(engine: Any, found: Preflight, model: FileFacts) -> Refusal | None:
    """Stage 0: the model file holds the optimizer state, in a form that depends on the precision."""
    wrapped = bool({"FP16_Optimizer", "FP16_UnfusedOptimizer"} & class_names(engine.optimizer))
    folder = Path(found.request.folder, found.request.tag or "")
    if model.optimizer is None:
        shards = any(layout.parse(one.name) is not None and "optim_states" in one.name for one in folder.iterdir())
        return Refusal(REFUSED, _stage_changed(model.stage or 2, 0, folder)) if shards else None
    if (model.optimizer.style == "fp16") != wrapped:
        saved = model.precision or ("fp16 or bf16" if model.optimizer.style == "fp16" else "fp32")
        return _precision_changed(saved, _precision(engine), model.path)
    return None


def _no_swap_files(engine: Any, folder: Path) -> Refusal | None:
    """NVMe offload: DeepSpeed copies the tag's swap files and reads them by name; what it does not find stays as it was."""
    rank, names = swap_rank(engine), swap_names(engine.optimizer)
    lacking = [name for name in names if swap.path_in(folder, rank, name) is None]
    if not lacking:
        return None
    others = sorted(path.name for path in (folder / layout.OFFLOADED).rglob("*.swp"))
    return Refusal(
        REFUSED,
        explain(
            "swap files of the NVMe offload that this rank needs are not in the tag",
            expected=shorten(lacking),
            found=shorten(others) if others else "no swap file",
            where=str(folder / layout.OFFLOADED),
            do=ONE_PROCESS if others else tags_there(str(folder.parent)),
        ),
    )


def _does_not_fit(
    engine: Any, found: Preflight, stage: int, dp_rank: int, dp_size: int, sharded: bool, asks_shard: bool
) -> Refusal | None:
    model = facts_of(found.files["model"])
    folder = Path(found.request.folder, found.request.tag or "")
    for one in found.files.values():
        if (refusal := _renamed(one, model, dp_rank)) is not None:
            return refusal
    if (refusal := _no_scheduler(engine, found) or _no_swap_files(engine, folder)) is not None:
        return refusal
    if (refusal := _feature_was_off(engine, found)) is not None:
        return refusal
    if not sharded and asks_shard and engine.optimizer is not None:
        return (
            _unsharded_state(engine, found, model)
            or _other_optimizer(engine, model)
            or wrong_numbers(engine, model, found.files["model"])
        )
    tree = found.files.get("shard")
    if tree is None:
        return None
    if sharded and model.dp_world_size not in (None, dp_size):
        if asks_shard:
            return Refusal(REFUSED, _world_changed(model.dp_world_size or 0, dp_size, folder, stage))
        del found.files["shard"]  # the weights are put together from all shards; this one is another rank's now
        return None
    shard = facts_of(tree)
    if (refusal := _foreign_shard(shard, model, dp_rank)) is not None or not asks_shard:
        return refusal
    return _other_optimizer(engine, shard) or wrong_places(engine, model, tree)


def _renamed(tree: Tree, model: FileFacts, dp_rank: int) -> Refusal | None:
    """A file that was saved under the name of another rank. At stage 3 nothing else in a shard tells its rank.

    A converter may write under names of its own: a shard whose content is this rank's is believed.
    """
    was, now = saved_as(tree), layout.parse(os.path.basename(tree.path))
    if was is None or now is None or (was.kind, was.dp_rank, was.mp_rank) == (now.kind, now.dp_rank, now.mp_rank):
        return None
    if now.kind == "shard" and rank_of(facts_of(tree), model) == [dp_rank]:
        return None
    return Refusal(
        REFUSED,
        explain(
            "a file has the name of one rank and the content of another",
            expected=f"what was saved as {os.path.basename(tree.path)}",
            found=f"what was saved as {tree.archive.folder if tree.archive else ''}.pt",
            where=tree.path,
            do="restore the file from where it was copied; files of one tag were mixed up",
        ),
    )


def _no_scheduler(engine: Any, found: Preflight) -> Refusal | None:
    """DeepSpeed hands the scheduler what the file holds, which then is None (``DeepSpeedEngine._load_checkpoint``)."""
    saved = found.files["model"].get(("lr_scheduler",))
    if "lr_scheduler" not in found.request.asked or engine.lr_scheduler is None or saved is not None:
        return None
    return Refusal(
        REFUSED,
        explain(
            "the checkpoint holds no scheduler, and this engine has one",
            expected="the state of the LR scheduler",
            found="none in the model file",
            where=found.files["model"].path,
            do="load_lr_scheduler_states=False keeps this run's own schedule",
        ),
    )


def _feature_was_off(engine: Any, found: Preflight) -> Refusal | None:
    """DeepSpeed hands these the None that the file holds, too, when the feature was off at the save."""
    has = {
        "random_ltd": flag(engine, "random_ltd_enabled"),
        "data_sampler": flag(engine, "curriculum_learning_enabled")
        and getattr(engine, "training_dataloader", None) is not None,
    }
    tree = found.files["model"]
    root = tree.root if isinstance(tree.root, dict) else {}
    for name, on in has.items():
        if on and name in found.request.asked and root.get(name, "") is None:
            return Refusal(
                REFUSED,
                explain(
                    f"the checkpoint holds no {name} state, and this engine has the feature on",
                    expected=f"the state of {name}",
                    found="None in the model file: the feature was off at the save",
                    where=tree.path,
                    do="turn the feature off in data_efficiency, as in the run that saved",
                ),
            )
    return None


#: Hyperparameters that tell one kind of optimizer from another. `amsgrad` is not among them: of the Adams that may take each
#: other's place (torch's, fused, on the CPU) some have it.
_TELLING = frozenset(
    ("betas", "eps", "momentum", "dampening", "nesterov", "alpha", "centered", "lr_decay", "rho", "max_coeff", "min_coeff")
)  # fmt: skip


def _other_optimizer(engine: Any, saved: FileFacts) -> Refusal | None:
    """State of another kind of optimizer, which ``torch.optim.Optimizer.load_state_dict`` installs without looking."""
    base = base_optimizer(engine)
    if saved.optimizer is None or not saved.optimizer.groups:
        return None
    groups = getattr(base, "param_groups", None) or ()
    here = _TELLING & {key for group in groups for key in group}
    there = _TELLING & {key for group in saved.optimizer.groups for key in group}
    if here == there or not groups:
        return None
    kind = saved.optimizer.kind
    return Refusal(
        REFUSED,
        explain(
            "the optimizer state is that of another kind of optimizer",
            expected=f"state for {type(base).__name__}, with {', '.join(sorted(here)) or 'none of the usual hyperparameters'}",
            found=f"state of {kind or 'an optimizer'} with {', '.join(sorted(there)) or 'none of them'}",
            where=saved.path,
            do=("configure the optimizer of the run that saved", f"or take the weights only: {ways.WEIGHTS_ONLY}"),
        ),
    )


def _foreign_shard(shard: FileFacts, model: FileFacts, dp_rank: int) -> Refusal | None:
    ranks = rank_of(shard, model)
    if ranks is None or dp_rank in ranks:
        return None
    return Refusal(
        REFUSED,
        explain(
            "a shard has the name of one rank and the content of another",
            expected=f"the partition of data-parallel rank {dp_rank}",
            found=f"the partition of rank {shorten(ranks)}" if ranks else "a partition of no rank of this checkpoint",
            where=shard.path,
            do="restore the file from where it was copied; shards of one tag were mixed up",
        ),
    )
