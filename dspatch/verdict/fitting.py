"""Whether this rank's files fit it: content of its own rank, of its kind of optimizer, with what the engine will ask for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout, swap, ways
from dspatch.checkpoint.shard import FileFacts, facts_of, rank_of, saved_as
from dspatch.checkpoint.unpickle import Tree
from dspatch.errors import explain, shorten
from dspatch.live.attributes import base_optimizer, flag
from dspatch.live.swapped import swap_names, swap_rank
from dspatch.verdict.found import REFUSED, Preflight, Refusal, tags_there
from dspatch.verdict.matching import ONE_PROCESS
from dspatch.verdict.placement import wrong_numbers, wrong_places
from dspatch.verdict.transitions import unsharded_state, world_changed


def does_not_fit(
    engine: Any, found: Preflight, stage: int, dp_rank: int, dp_size: int, sharded: bool, asks_shard: bool
) -> Refusal | None:
    """A refusal when the files are those of another rank, run or engine.

    Args:
        engine: untouched.
        found: with the trees of this rank's files; a shard that this rank only lends to others is taken out of it.
        stage, dp_rank, dp_size: of the engine.
        sharded: optimizer state lies in shards.
        asks_shard: the caller asked for it.
    """
    model = facts_of(found.files["model"])
    folder = Path(found.request.folder, found.request.tag or "")
    for one in found.files.values():
        if (refusal := _renamed(one, model, dp_rank)) is not None:
            return refusal
    if (refusal := _no_scheduler(engine, found) or _no_swap_files(engine, folder)) is not None:
        return refusal
    if (refusal := _feature_was_off(engine, found)) is not None:
        return refusal
    if not sharded and asks_shard:
        return (
            unsharded_state(engine, found, model)
            or _other_optimizer(engine, model)
            or wrong_numbers(engine, found.files["model"])
        )
    tree = found.files.get("shard")
    if tree is None:
        return None
    if sharded and model.dp_world_size not in (None, dp_size):
        if asks_shard:
            return world_changed(model.dp_world_size or 0, dp_size, folder, stage)
        del found.files["shard"]  # the weights are put together from all shards; this one is another rank's now
        return None
    shard = facts_of(tree)
    if (refusal := _foreign_shard(shard, model, dp_rank)) is not None or not asks_shard:
        return refusal
    return _other_optimizer(engine, shard) or wrong_places(engine, found.files["model"], tree)


def _renamed(tree: Tree, model: FileFacts, dp_rank: int) -> Refusal | None:
    """A file that was saved under the name of another rank. At stage 3 nothing else in a shard tells its rank.

    A converter may write under names of its own: a shard whose content is this rank's is believed.
    """
    was, now = saved_as(tree), layout.parse(os.path.basename(tree.path))
    if was is None or now is None or layout.same_place(was, now):
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
