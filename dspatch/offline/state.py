"""State that a resume needs: is it in the files, and what do the known faults of DeepSpeed leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dspatch.errors import shorten
from dspatch.offline.expected import Layout
from dspatch.offline.findings import Finding
from dspatch.offline.record import FileRecord
from dspatch.offline.survey import TagListing

_OTHER_TAG = "resume from a tag that has it, or take the weights only: load_optimizer_states=False"


def never_written(records: Sequence[FileRecord], laid: Layout) -> str | None:
    """The fault by which no shard was ever written, ``A4`` or ``A5``; None when shards exist or may have been lost."""
    models = [one for one in records if one.kind in ("model", "model_part") and one.damage is None]
    if laid.universal or laid.pipeline or not laid.trained or not models or any(
        one.kind in ("shard", "expert_optimizer") or one.optimizer is not None for one in records
    ):  # fmt: skip
        return None
    if laid.stage == 0 and models[0].precision == "bf16":
        return "A4"
    dtype = str(models[0].config.get("grad_dtype") or "").lower()
    return (
        "A5"
        if laid.stage == 1 and models[0].precision == "bf16" and dtype in ("fp32", "float32", "torch.float32")
        else None
    )


def missing_state(listing: TagListing, records: Sequence[FileRecord], laid: Layout) -> Iterator[Finding]:
    """State that a resume needs and no file of the tag has."""
    read = [one for one in records if one.damage is None]
    models = [one for one in read if one.kind in ("model", "model_part")]
    if not laid.trained:
        yield Finding("tag.export", "the tag holds weights, and was saved by an engine without an optimizer", listing.name,
                      do="load it with load_module_only=True")  # fmt: skip
        return
    yield from _optimizers(listing, read, models, laid)
    for one in models:
        yield from _model(listing.name, one, laid)
    if laid.universal:
        yield from _universal(listing.name, read, models)


def _optimizers(
    listing: TagListing, read: Sequence[FileRecord], models: Sequence[FileRecord], laid: Layout
) -> Iterator[Finding]:
    tag, holders = listing.name, [one for one in read if one.optimizer is not None]
    for one in read:
        if one.kind == "shard" and one.optimizer is None:
            yield Finding("file.content", f"{one.name} holds no optimizer state", tag, one.name, one.dp_rank,
                          expected="masters and moments of a rank", found="neither", do=_OTHER_TAG)  # fmt: skip
    lost = never_written(read, laid)
    if (
        not holders
        and not laid.universal
        and not laid.sharded
        and not any(one.kind == "shard" for one in read)
        and models
    ):
        fault = lost or ""
        yield Finding(
            f"fault.{fault}" if fault else "state.missing", "no file of this tag holds optimizer state", tag,
            expected="moments and masters", found="`optimizer` is None and there are no shards: never written, or lost",
            do=_OTHER_TAG, fault=fault,
        )  # fmt: skip
    elif lost is not None:
        yield Finding(f"fault.{lost}", "no shard was written: no file of this tag holds optimizer state", tag,
                      expected="moments and masters", found="no shard of any rank", do=_OTHER_TAG, fault=lost)  # fmt: skip
    yield from _moments(listing, holders, models)
    counted, taken = sorted({step for one in holders for step in _said(one)["steps"]}), _steps_taken(models)
    # A step more is how some releases build their wrappers; more than that is an optimizer that began anew, or files of
    # two saves, which only their values can tell apart.
    if len(counted) == 1 and taken is not None and counted[0] not in (taken, taken + 1):
        yield Finding("counters.step", f"the optimizer counts {counted[0]:g} steps, the engine {taken}", tag)


def _moments(listing: TagListing, holders: Sequence[FileRecord], models: Sequence[FileRecord]) -> Iterator[Finding]:
    tag, taken = listing.name, _steps_taken(models)
    config: dict[str, Any] = next((one.config for one in (*models, *holders) if one.config), {})
    usual = sorted({name for one in holders for name in _said(one)["names"]})
    without: list[FileRecord] = []
    for one in holders:
        said = _said(one)
        if said["elastic"] or not sum(said["masters"] or [1]):
            continue
        bare = not said["names"] and not usual and bool(taken) and _has_betas(said)
        if bare or _lacks(one, [other for other in holders if other.mp_rank == one.mp_rank and other.kind == one.kind]):
            without.append(one)
        elif wrong := _wrong_states(one, said):
            yield Finding("state.shape", f"{one.name} {wrong}", tag, one.name, one.dp_rank,
                          expected="moments of the size of their masters", found=wrong, do=_OTHER_TAG)  # fmt: skip
        if one.kind != "expert_optimizer" and not said["groups"] and said["style"] != "torch":
            yield Finding("state.missing", f"{one.name} holds no param_groups", tag, one.name, one.dp_rank,
                          expected="hyperparameters of each group", found="none", do=_OTHER_TAG)  # fmt: skip
        if one.precision == "fp16" and said["style"] in ("zero12", "zero3") and not said["scaler"]:
            yield Finding("state.missing", f"{one.name} holds no loss scaler", tag, one.name, one.dp_rank,
                          expected="the dynamic loss scale", found="none", do=_OTHER_TAG)  # fmt: skip
    if config.get("offload") == "nvme":
        if listing.swapped == 0 or (listing.swapped < 0 and any(_swapped(one) for one in holders)):
            yield Finding("state.missing", "optimizer state was swapped to NVMe, and its files are not in the tag", tag,
                          expected="the folder offloaded_tensors", found="none, or an empty one", do=_OTHER_TAG)  # fmt: skip
        return
    if without:
        fault = _partial_fault(config)
        names = shorten(one.name for one in without)
        yield Finding(
            f"fault.{fault}" if fault else "state.missing", f"{len(without)} files hold no moments, or not all: {names}", tag,
            without[0].name, without[0].dp_rank, expected=f"{shorten(usual) or 'moments'} after {taken or 'some'} steps",
            found=shorten(_said(without[0])["names"]) or "none", do=_OTHER_TAG, fault=fault,
        )  # fmt: skip
    elif (fault := _partial_fault(config)) == "G12":
        yield Finding(
            "fault.G12", "ZenFlow keeps moments of the selected columns in no file", tag, do=_OTHER_TAG, fault=fault
        )


def _lacks(one: FileRecord, alike: Sequence[FileRecord]) -> bool:
    """Whether a file lacks moments that the files of other ranks have in the same place."""
    said = _said(one)
    others = [_said(other) for other in alike if other is not one]
    if said["entries"] < max((other["entries"] for other in others), default=0):
        return True
    for at, states in enumerate(said["states"]):
        wanted = {name for other in others if at < len(other["states"]) for name in other["states"][at]}
        # Where a rank holds padding only it may have no state.
        empty = at < len(said["masters"]) and not said["masters"][at]
        if wanted - set(states) and not empty:
            return True
    return False


def _partial_fault(config: dict[str, Any]) -> str:
    if config.get("zenflow"):
        return "G12"
    if config.get("super_offload"):
        return "G11"
    ratio = config.get("ratio")
    return "G10" if isinstance(ratio, int | float) and ratio < 1 and config.get("stage") == 3 else ""


def _swapped(record: FileRecord) -> bool:
    return any(numel == 0 for numel in _said(record)["masters"])


def _has_betas(said: dict[str, Any]) -> bool:
    """Whether the hyperparameters are those of an optimizer that keeps moments from its first step on."""
    return any("betas" in group or group.get("momentum") for group in said["groups"])


def _wrong_states(record: FileRecord, said: dict[str, Any]) -> str:
    if said["style"] not in ("zero12", "bf16", "zero3") or len(said["states"]) != len(said["padded"]):
        return ""
    for group, (states, size) in enumerate(zip(said["states"], said["padded"], strict=True)):
        for name, numel in states.items():
            if numel not in (size, said["masters"][group], 0) and name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
                return f"has {numel:,} elements of {name} in group {group}, where {size:,} belong"
    return ""


def _steps_taken(models: Sequence[FileRecord]) -> int | None:
    """Steps that were not skipped; None when nothing tells."""
    for one in models:
        if one.global_steps is not None:
            return one.global_steps - (one.skipped_steps or 0)
    return None


def _model(tag: str, one: FileRecord, laid: Layout) -> Iterator[Finding]:
    if one.bad_counters:
        yield Finding(
            "fault.F3", f"{one.name} holds something else under {shorten(one.bad_counters)}", tag, one.name, one.dp_rank,
            expected="what DeepSpeed keeps under these names", found="another type: client_state was laid over them at save",
            do="rename the keys of client_state; this tag's values are lost", fault="F3",
        )  # fmt: skip
        return
    lost = [name for name in ("global_steps", "global_samples", "skipped_steps") if getattr(one, name) is None]
    if lost:
        yield Finding("counters.missing", f"{one.name} holds no {shorten(lost)}", tag, one.name, one.dp_rank,
                      expected="the counters of the engine", found="none", do=_OTHER_TAG)  # fmt: skip
    if one.config.get("scheduler") and not one.has_scheduler:
        yield Finding("scheduler.missing", f"{one.name} holds no state of the scheduler that its configuration names", tag,
                      one.name, one.dp_rank, expected="the state of the learning-rate scheduler", found="None",
                      do="set its last step by hand after the load")  # fmt: skip
    if not one.has_module and not laid.pipeline and not laid.universal:
        yield Finding("weights.missing", f"{one.name} holds no weights", tag, one.name, one.dp_rank,
                      expected="`module`", found="none", do=_OTHER_TAG)  # fmt: skip
    if one.lacks and not laid.moe and not laid.pipeline:
        number, *names = one.lacks
        yield Finding(
            "weights.missing", f"{one.name} lists {number} parameters whose weights it does not hold: {shorten(names)}", tag,
            one.name, one.dp_rank, expected="the weights of all parameters", found=f"{number} of them not there",
            do="load_module_strict=False leaves them as the model was built",
        )  # fmt: skip


def _universal(tag: str, read: Sequence[FileRecord], models: Sequence[FileRecord]) -> Iterator[Finding]:
    """Every parameter needs the files that others have; one with weights only never got a gradient."""
    folders: dict[str, dict[str, FileRecord]] = {}
    for one in read:
        if one.kind == "parameter":
            _, folder, name = one.name.split("/")
            folders.setdefault(folder, {})[name] = one
    sets = [set(files) for files in folders.values() if set(files) != {"fp32.pt"}]
    wanted = set.union(*sets) if sets else {"fp32.pt"}
    short = {folder: sorted(wanted - set(files)) for folder, files in folders.items()
             if wanted - set(files) and set(files) != {"fp32.pt"}}  # fmt: skip
    for folder, lacking in list(short.items())[:50]:
        yield Finding(
            "universal.missing", f"the parameter {folder} has no {shorten(lacking)}", tag, f"zero/{folder}/{lacking[0]}",
            expected=shorten(sorted(wanted)), found=shorten(sorted(folders[folder])),
            do="convert again: the conversion or the copy was interrupted",
        )  # fmt: skip
    if not folders:
        yield Finding("universal.missing", "there are no parameters in zero/", tag, do="convert again")
    if any(one.round_robin for one in models):
        yield Finding(
            "fault.C14", "the checkpoint that this was converted from used round_robin_gradients: the conversion scrambles "
            "weights and moments", tag, do="resume the original with the ranks that saved it", fault="C14",
        )  # fmt: skip


def faults(tag: str, records: Sequence[FileRecord], laid: Layout) -> Iterator[Finding]:
    """Known faults that the content of the files shows, which leave the tag loadable as it is."""
    read = [one for one in records if one.damage is None]
    if any(one.round_robin for one in read) and laid.stage in (1, 2) and laid.dp > 1 and not laid.universal:
        yield Finding(
            "fault.C14", "saved with round_robin_gradients: resume with the same number of ranks, and do not convert", tag,
            do="save once more without round_robin_gradients before the number of ranks changes", fault="C14",
        )  # fmt: skip
    elastic = [one for one in read if one.optimizer is not None and one.optimizer["elastic"]]
    if elastic:
        yield Finding(
            "fault.F7", "saved with elastic_checkpoint: learning rate, betas and weight decay are in no file", tag,
            do="set them in the script that resumes; a scheduler sets only the learning rate", fault="F7",
        )  # fmt: skip
    vectors = [one for one in elastic if one.optimizer is not None and one.optimizer["odd_step"]]
    if vectors:
        yield Finding("fault.F8", f"the optimizer step is no single number in {shorten(one.name for one in vectors)}", tag,
                      vectors[0].name, vectors[0].dp_rank, do="set the step by hand after the load", fault="F8")  # fmt: skip


def values(tag: str, records: Sequence[FileRecord], laid: Layout) -> Iterator[Finding]:
    """What the deep check found in the values of masters and moments."""
    looked = [one for one in records if one.deep is not None]
    for one in looked:
        for component, (number, example) in sorted((one.deep or {}).get("not_finite", {}).items()):
            yield Finding(
                "values.not-finite", f"{one.name} holds {number:,} elements in its {component} that are NaN or infinite", tag,
                one.name, one.dp_rank, expected="numbers", found=f"the first in {example}",
                do="resume from an older tag: the run had already diverged when this one was saved",
            )  # fmt: skip
        if (other := (one.deep or {}).get("other_save")) is not None:
            yield Finding(
                "shard.other-save", f"the masters in {one.name} do not give the weights of the model file", tag, one.name,
                one.dp_rank, expected="weights that are the rounded masters", found=f"{other[0]} of {other[1]} sampled "
                "elements differ", do="restore the files of this tag from where they were copied",
            )  # fmt: skip
    counted = [one for one in looked if "zero_moments" in (one.deep or {}) and (one.deep or {}).get("moments")]
    if not counted:
        return
    zero = [one for one in counted if (one.deep or {})["zero_moments"]]
    taken = _steps_taken([one for one in records if one.kind in ("model", "model_part") and one.damage is None])
    holders = [
        one for one in records if one.optimizer is not None and one.kind in ("shard", "model", "expert_optimizer")
    ]
    if zero and len(zero) == len(counted) == len(holders) and (taken or 0) > 0:
        yield Finding("moments.all-zero", f"all moments are zero after {taken} steps", tag,
                      expected="moments that remember the gradients", found="zeros in every file",
                      do="the moments were lost before this save: resume from an older tag")  # fmt: skip
    elif zero and len(zero) < len(counted):
        yield Finding("moments.zero", f"all moments are zero in {shorten(one.name for one in zero)}", tag)


def _said(record: FileRecord) -> dict[str, Any]:
    assert record.optimizer is not None
    return record.optimizer
