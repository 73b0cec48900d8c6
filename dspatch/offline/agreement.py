"""Files of one tag against each other: are they of one save, and is every shard where its content belongs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from dspatch.checkpoint import layout as names
from dspatch.checkpoint.content import crc_of_zeros
from dspatch.errors import shorten
from dspatch.offline.expected import Layout, common
from dspatch.offline.findings import Finding
from dspatch.offline.record import FileRecord

_RESTORE = "restore the files of this tag from where they were copied, or resume from another tag"


def disagreements(tag: str, records: Sequence[FileRecord], laid: Layout) -> Iterator[Finding]:
    """What the files of a tag do not agree on. Stale files are left out: they have a finding of their own."""
    belonging = [one for one in records if one.damage is None and one.name in {*laid.expected, *laid.optional}]
    models = [one for one in belonging if one.kind in ("model", "model_part")]
    shards = [one for one in belonging if one.kind == "shard" and one.optimizer is not None]
    yield from _one_value(tag, belonging, "mixed.release", "DeepSpeed", lambda one: one.ds_version)
    yield from _one_value(tag, models, "mixed.steps", "global_steps", lambda one: one.global_steps)
    if not any(
        one.severity == "error" for one in _one_value(tag, models, "mixed.steps", "", lambda one: one.global_steps)
    ):
        yield from _one_value(tag, models, "mixed.save", "global_samples", lambda one: one.global_samples)
        yield from _one_value(tag, models, "mixed.save", "skipped_steps", lambda one: one.skipped_steps)
    yield from _one_value(tag, models, "mixed.world", "dp_world_size", lambda one: one.dp_world_size)
    yield from _one_value(tag, models, "mixed.world", "mp_world_size", lambda one: one.mp_world_size)
    for kind in ("model", "model_part"):
        for mp in sorted({one.mp_rank or 0 for one in models}):
            alike = [one for one in models if one.kind == kind and (one.mp_rank or 0) == mp]
            yield from _one_value(tag, alike, "mixed.save", "parameters", lambda one: one.shapes_digest)
    yield from _shards(tag, shards, models, laid)
    if not laid.universal:
        yield from _renamed(tag, belonging)


def is_misnamed(record: FileRecord) -> bool:
    """Whether a file was saved as that of another rank, layer or expert, and nothing in it says that it belongs here.

    The folder inside the archive keeps the name that ``torch.save`` was given, through copies and renames of the file. A
    converter may write under names of its own, so a shard whose content fits its present name, and no other, is believed.
    """
    was, now = names.parse(record.saved_as), names.parse(record.name)
    if was is None or now is None or (record.fits is not None and record.fits == [record.dp_rank]):
        return False
    return not names.same_place(was, now)


def _renamed(tag: str, records: Sequence[FileRecord]) -> Iterator[Finding]:
    """At stage 3 nothing but the name inside a shard tells its rank."""
    odd = {one.name: one for one in records if is_misnamed(one)}
    for one in odd.values():
        if one.kind == "shard" and one.fits is not None and one.dp_rank not in one.fits:
            continue  # its content says more, and has a finding
        id = "shard.other-rank" if one.kind == "shard" else "file.other-name"
        if one.kind in ("layer", "expert") and one.saved_as not in odd:
            # Models are deepened and experts multiplied by copying these; exchanged with each other they are wrong.
            yield Finding("file.renamed", f"{one.name} was saved as {one.saved_as}", tag, one.name)
            continue
        yield Finding(
            id, f"{one.name} was saved as {one.saved_as}", tag, one.name, one.dp_rank,
            expected=f"what was saved as {one.name}", found=f"what was saved as {one.saved_as}", do=_RESTORE,
        )  # fmt: skip


def _shards(tag: str, shards: list[FileRecord], models: list[FileRecord], laid: Layout) -> Iterator[Finding]:
    yield from _one_value(tag, [*models, *shards], "mixed.stage", "ZeRO stage", lambda one: one.stage)
    yield from _one_value(tag, shards, "mixed.stage", "form of the optimizer state", lambda one: _said(one)["style"])
    yield from _one_value(tag, shards, "mixed.world", "partition_count", lambda one: tuple(one.partition_count) or None)
    yield from _worlds(tag, shards, models)
    odd = {one.name for one in _odd_steps(shards)}
    yield from _steps(tag, shards)
    same_step = [one for one in shards if one.name not in odd]
    for mp in sorted({one.mp_rank or 0 for one in same_step}):
        alike = [one for one in same_step if (one.mp_rank or 0) == mp]
        yield from _one_value(tag, alike, "mixed.save", "hyperparameters of the groups", _hyperparameters)
        yield from _one_value(tag, alike, "mixed.save", "loss scaler", lambda one: _text(_said(one)["scaler"]))
        yield from _positions(tag, alike, models, mp, laid)
    yield from _twins(tag, shards, models)


def _one_value(
    tag: str, records: Sequence[FileRecord], id: str, what: str, value: Callable[[FileRecord], Hashable | None]
) -> Iterator[Finding]:
    """One finding for each value that is not the common one."""
    told = [(one, value(one)) for one in records]
    told = [(one, said) for one, said in told if said is not None]
    usual = common(said for _, said in told)
    others: dict[Hashable, list[FileRecord]] = defaultdict(list)
    for one, said in told:
        if said != usual:
            others[said].append(one)
    for said, odd in others.items():
        count = len(told) - sum(len(files) for files in others.values())
        short = len(str(said)) <= 60 and len(str(usual)) <= 60
        yield Finding(
            id, f"{what} of {shorten(one.name for one in odd)} differs from that of {count} other files",
            tag, odd[0].name, odd[0].dp_rank, expected=f"{what} {usual if short else 'as in the other files'}",
            found=f"{what} {said if short else _difference(usual, said)}", do=_RESTORE,
        )  # fmt: skip


def _difference(usual: Hashable, said: Hashable) -> str:
    """Where two texts of JSON differ."""
    try:
        one, other = json.loads(str(usual)), json.loads(str(said))
    except ValueError:
        return "of another value"
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        one = {f"group {at}, {key}": value for at, group in enumerate(one) for key, value in group.items()}
        other = {f"group {at}, {key}": value for at, group in enumerate(other) for key, value in group.items()}
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in one if one[key] != other.get(key)]
        return shorten((f"{key}: {other.get(key)} instead of {one[key]}" for key in keys), 2)
    return "of another form"


def _worlds(tag: str, shards: list[FileRecord], models: list[FileRecord]) -> Iterator[Finding]:
    """Model files and shards must say the same number of data-parallel ranks."""
    parts = common(max(one.partition_count) for one in shards if one.partition_count)
    ranks = common(one.dp_world_size for one in models if one.dp_world_size)
    special = any(one.num_experts or one.config.get("mics_shard_size") for one in models)
    if parts is None or ranks is None or parts == ranks or special:
        return
    yield Finding(
        "mixed.world", f"the model files are of {ranks} data-parallel ranks and the shards of {parts}", tag,
        expected=f"shards of {ranks} ranks", found=f"partition_count {parts}", do=_RESTORE,
    )  # fmt: skip


def _odd_steps(shards: Sequence[FileRecord]) -> list[FileRecord]:
    told = [one for one in shards if _said(one)["steps"]]
    usual = set(common(tuple(_said(one)["steps"]) for one in told) or ())
    # A rank may lack some of the steps, where its partitions are empty; of none it has all others.
    return [one for one in told if not set(_said(one)["steps"]) & usual]


def _steps(tag: str, shards: Sequence[FileRecord]) -> Iterator[Finding]:
    odd = _odd_steps(shards)
    if not odd:
        return
    usual = common(tuple(_said(one)["steps"]) for one in shards if _said(one)["steps"]) or ()
    found = sorted({step for one in odd for step in _said(one)["steps"]})
    yield Finding(
        "mixed.steps", f"the optimizer step of {shorten(one.name for one in odd)} is not that of the other shards", tag,
        odd[0].name, odd[0].dp_rank, expected=f"optimizer step {shorten(f'{step:g}' for step in usual)}",
        found=f"optimizer step {shorten(f'{step:g}' for step in found)}", do=_RESTORE,
    )  # fmt: skip


def _positions(
    tag: str, shards: Sequence[FileRecord], models: Sequence[FileRecord], mp: int, laid: Layout
) -> Iterator[Finding]:
    model = next((one for one in models if (one.mp_rank or 0) == mp and one.shapes), None)
    for one in shards:
        if one.fits is not None and one.dp_rank not in one.fits:
            id = "shard.other-rank" if one.fits else "shard.other-model"
            found = f"the partition of rank {shorten(one.fits)}" if one.fits else "a partition of no rank of this model"
            yield Finding(
                id, f"{one.name} holds {found}", tag, one.name, one.dp_rank,
                expected=f"the partition of data-parallel rank {one.dp_rank}", found=found, do=_RESTORE,
            )  # fmt: skip
        elif model is not None and (wrong := _wrong_size(one, model, laid)):
            yield Finding(
                "shard.other-model", f"{one.name} {wrong[0]}", tag, one.name, one.dp_rank, expected=wrong[1], found=wrong[2],
                do=_RESTORE,
            )  # fmt: skip


def _wrong_size(shard: FileRecord, model: FileRecord, laid: Layout) -> tuple[str, str, str] | None:
    """Elements of each group against the shapes in the model file: what is wrong, expected, found."""
    said = _said(shard)
    masters, padded, style = said["masters"], said["padded"], said["style"]
    if style not in ("zero12", "bf16", "zero3") or not masters or shard.config.get("parameter_alignment"):
        return None
    if len(masters) != len(model.shapes):
        text = f"{len(model.shapes)} groups of parameters", f"{len(masters)} masters"
        return "does not have a master for each group of the model file", *text
    for group, (_, total, per_rank) in enumerate(model.shapes):
        if style == "zero3":
            # Swapped to NVMe a group has no elements here.
            if masters[group] not in (per_rank, 0):
                return (f"has {masters[group]:,} elements in group {group}", f"{per_rank:,} elements for each of {laid.dp} ranks",
                        f"{masters[group]:,}")  # fmt: skip
            continue
        count = shard.partition_count[group] if group < len(shard.partition_count) else laid.dp
        if padded[group] * count < total or (
            count == laid.dp and (padded[group] - 1) * count > total + _slack(padded[group])
        ):
            return (f"is of another size in group {group}", f"{count} partitions of {total:,} elements",
                    f"partitions of {padded[group]:,} elements")  # fmt: skip
    return None


def _slack(size: int) -> int:
    """Elements that alignment may add to a group: it is aligned to a few elements for each rank."""
    return max(size, 4096) * 2


def _twins(tag: str, shards: Sequence[FileRecord], models: Sequence[FileRecord]) -> Iterator[Finding]:
    """Two ranks with the same moments and masters: one file was copied over the other."""
    if any(one.config.get("mics_shard_size") for one in (*shards, *models)):
        return  # MiCS keeps the same partition on several ranks
    seen: dict[tuple[int, str], FileRecord] = {}
    for one in shards:
        if len(one.sums) < 2 or all(crc == crc_of_zeros(size) for crc, size in one.sums):
            continue
        first = seen.setdefault((one.mp_rank or 0, _text(one.sums)), one)
        if first is not one:
            yield Finding(
                "shard.twin", f"{one.name} holds the same state as {first.name}", tag, one.name, one.dp_rank,
                expected=f"the partition of data-parallel rank {one.dp_rank}", found=f"that of rank {first.dp_rank}, or the "
                "other way round", do=_RESTORE,
            )  # fmt: skip


def _said(record: FileRecord) -> dict[str, Any]:
    assert record.optimizer is not None
    return record.optimizer


def _hyperparameters(record: FileRecord) -> str | None:
    groups = [{key: value for key, value in group.items() if key != "step"} for group in _said(record)["groups"]]
    return _text(groups) if groups else None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
