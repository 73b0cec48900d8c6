"""Which files a tag needs: the layout is told by what its readable files say, and by their names where they say nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dspatch.checkpoint import layout
from dspatch.offline.record import FileRecord

_Value = TypeVar("_Value", bound=Hashable)


@dataclass(slots=True)
class Layout:
    """How a tag is laid out.

    Attributes:
        stage: ZeRO stage; None when nothing tells.
        dp: data-parallel ranks at save. mp: model-parallel ranks (tensor times pipeline).
        bf16: shards carry the prefix ``bf16_``.
        sharded: optimizer state lies in shards.
        moe, pipeline, universal: it has experts, pipeline layers, parameters of a universal checkpoint.
        expected: names that must be there, in order.
        optional: names that may be there.
        trained: it was saved by an engine that trains: optimizer state belongs to it.
    """

    stage: int | None
    dp: int
    mp: int
    bf16: bool
    sharded: bool
    moe: bool
    pipeline: bool
    universal: bool
    trained: bool = True
    expected: list[str] = field(default_factory=list)
    optional: set[str] = field(default_factory=set)

    @property
    def world(self) -> int:
        """Ranks at save, without sequence parallelism counted apart."""
        return self.dp * self.mp


def layout_of(records: Sequence[FileRecord], siblings: Sequence[FileRecord] = ()) -> Layout:
    """The layout of a tag.

    Args:
        records: of all its files, damaged ones as ``blank`` with ``damage``.
        siblings: names in other tags of the same folder, as blank records, for what no file of this tag tells (layers of a
            pipeline without ZeRO).
    """
    read = [one for one in records if one.damage is None]
    models = [one for one in read if one.kind in ("model", "model_part")]
    shards = [one for one in read if one.kind == "shard" and one.optimizer is not None]
    kinds = {one.kind for one in records}
    universal = bool(kinds & {"parameter", "universal"})
    moe = bool(kinds & {"expert", "expert_optimizer"}) or any(
        one.num_experts and max(one.num_experts) > 1 for one in models
    )
    pipeline = "layer" in kinds
    stage = _stage(records, models, shards)
    made = Layout(
        stage, _data_parallel(records, models, shards, stage), _model_parallel(records, models),
        _has_prefix(records, models), _is_sharded(records, models, stage, universal), moe, pipeline, universal,
    )  # fmt: skip
    made.trained = _is_trained(read, models, made)
    _name_files(made, records, models, siblings)
    return made


def common(values: Iterable[_Value]) -> _Value | None:
    """The most frequent value; of equally frequent ones the first; None without any."""
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else None


def _stage(records: Sequence[FileRecord], models: list[FileRecord], shards: list[FileRecord]) -> int | None:
    told = common(one.stage for one in (*models, *shards) if one.stage is not None)
    if told is None and any(one.kind == "model_part" for one in records):
        told = 3
    if told is None and not any(one.kind == "shard" for one in records) and models:
        told = 0
    return told


def _data_parallel(
    records: Sequence[FileRecord], models: list[FileRecord], shards: list[FileRecord], stage: int | None
) -> int:
    from_shards = common(max(one.partition_count) for one in shards if one.partition_count)
    from_models = common(one.dp_world_size for one in models if one.dp_world_size)
    mics = any(one.config.get("mics_shard_size") for one in models)
    ranks = {one.dp_rank for one in records if one.dp_rank is not None}
    names = max(ranks, default=0) + 1
    if from_shards is not None and from_models is not None and from_shards != from_models and not mics:
        # Two answers: the one that the number of files supports. Older MoE files leave sequence parallelism out.
        return from_shards if names >= from_shards or from_shards > from_models else from_models
    if mics and from_models is not None:
        return max(from_models, 1)
    told = from_shards if from_shards is not None else from_models
    return max(told if told is not None else names, 1)


def _model_parallel(records: Sequence[FileRecord], models: list[FileRecord]) -> int:
    told = common(one.mp_world_size for one in models if one.mp_world_size)
    if told is not None:
        return max(told, 1)
    return max((one.mp_rank or 0 for one in records if one.kind in ("model", "model_part", "shard")), default=0) + 1


def _has_prefix(records: Sequence[FileRecord], models: list[FileRecord]) -> bool:
    told = common(one.precision for one in models if one.precision is not None)
    if told is not None:
        return told == "bf16"
    return common(one.bf16 for one in records if one.kind == "shard") or False


def _is_sharded(records: Sequence[FileRecord], models: list[FileRecord], stage: int | None, universal: bool) -> bool:
    if universal:
        return False
    if any(one.kind == "shard" for one in records):
        return True
    return bool(stage) and not any(one.optimizer is not None for one in models)


def _is_trained(read: list[FileRecord], models: list[FileRecord], made: Layout) -> bool:
    """False for what an engine without an optimizer saves: no optimizer state, no list of trained parameters, no step."""
    if made.universal or not models or any(one.optimizer is not None for one in read):
        return True
    if any(one.kind in ("shard", "expert_optimizer") for one in read):
        return True
    return any(one.shapes or (one.global_steps or 0) > (one.skipped_steps or 0) for one in models)


def _name_files(
    made: Layout, records: Sequence[FileRecord], models: list[FileRecord], siblings: Sequence[FileRecord]
) -> None:
    found = {one.name for one in records}
    stage = made.stage or 0
    if made.universal:
        parts = any(one.kind == "model_part" for one in records)
        made.expected = [layout.model_file(3 if parts else 0, mp) for mp in range(made.mp)]
        made.expected.append(f"{layout.UNIVERSAL}/optimizer_state.pt")
        made.optional = {one.name for one in records if one.kind in ("parameter", "universal", "model_part", "model")}
    else:
        made.expected = layout.expected_files(stage, made.dp, made.mp, made.bf16, made.sharded and made.trained)
        _accept_other_names(made, found)
    if made.moe:
        _name_experts(made, records, models)
    if made.pipeline:
        _name_layers(made, records, models, siblings)


def _accept_other_names(made: Layout, found: set[str]) -> None:
    """Old releases write no underscore in front of ``optim_states``; and a shard may carry the other prefix."""
    for at, name in enumerate(made.expected):
        if name in found or not name.endswith("_optim_states.pt"):
            continue
        other = name.removeprefix("bf16_") if name.startswith("bf16_") else f"bf16_{name}"
        old = [one.replace("_optim_states.pt", "optim_states.pt") for one in (name, other)]
        made.expected[at] = next((one for one in (old[0], other, old[1]) if one in found), name)


def _name_experts(made: Layout, records: Sequence[FileRecord], models: list[FileRecord]) -> None:
    experts = [one for one in records if one.kind == "expert"]
    numbers = common(tuple(one.num_experts) for one in models if one.num_experts)
    ranks = sorted({one.mp_rank or 0 for one in experts}) or [0]
    legacy = bool(experts) and all(one.layer is None for one in experts)
    if numbers is not None and not made.pipeline and not legacy and len(numbers) >= 1:
        layers = {one.layer for one in experts if one.layer is not None}
        # One number for all layers in old files, one for each layer since.
        per_layer = dict(enumerate(numbers)) if len(numbers) > 1 or not layers else dict.fromkeys(
            range(max(layers) + 1), numbers[0])  # fmt: skip
        made.expected += [layout.expert_file(layer, expert, mp) for layer, count in per_layer.items()
                          for expert in range(count) for mp in ranks]  # fmt: skip
    else:
        by_layer: dict[int | None, int] = {}
        for one in experts:
            by_layer[one.layer] = max(by_layer.get(one.layer, 0), (one.expert or 0) + 1)
        count = max([*by_layer.values(), *(numbers or ())], default=0)
        made.expected += [layout.expert_file(-1 if layer is None else layer, expert, mp)
                          for layer in sorted(by_layer, key=lambda one: -1 if one is None else one)
                          for expert in range(count) for mp in ranks]  # fmt: skip
    optimizers = [one for one in records if one.kind == "expert_optimizer"]
    told = common(one.ep_size for one in (*models, *optimizers) if one.ep_size)
    size = max(told or 1, max((one.expp_rank or 0 for one in optimizers), default=0) + 1)
    names = [layout.expert_optimizer_file(expp, mp) for mp in range(made.mp) for expp in range(size)]
    # With ZeRO the optimizer state of experts is in the shards, and these files are empty or not written.
    if made.sharded or not made.trained:
        made.optional.update(names)
    else:
        made.expected += names


def _name_layers(
    made: Layout, records: Sequence[FileRecord], models: list[FileRecord], siblings: Sequence[FileRecord]
) -> None:
    """Layers with trained parameters must be there; functions write none, and layers without parameters may."""
    layers = [one for one in records if one.kind == "layer"]
    numbers = {one.layer for one in layers} | {layer for one in models for layer in one.param_layers}
    if not any(one.param_layers for one in models):
        numbers |= {one.layer for one in siblings if one.kind == "layer"}
    templates = {one.name.split("-", 1)[1] for one in layers if "-" in one.name} or {"model_states.pt"}
    made.expected += [f"layer_{number:02d}-{rest}" for number in sorted(one for one in numbers if one is not None)
                      for rest in sorted(templates)]  # fmt: skip
