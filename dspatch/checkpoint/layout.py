"""File names of a DeepSpeed checkpoint: what a name says, and which names a layout needs.

The rules are those of ``DeepSpeedEngine`` (``_get_ckpt_name``, ``_get_rank_zero_ckpt_name``,
``_get_optimizer_ckpt_name``, ``_get_expert_ckpt_name``) and of ``PipelineModule.ckpt_layer_path``. Ranks in names are
of two kinds: data-parallel ranks are written plainly (``zero_pp_rank_10``), model-parallel ones with two digits
(``mp_rank_00``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

#: What a file can be. ``model``: weights and counters of one model-parallel rank (stages 0 to 2); ``model_part``: the
#: same of one data-parallel rank (stage 3); ``shard``: optimizer state of one rank (ZeRO); ``expert``: weights of one
#: expert; ``expert_optimizer``: optimizer state of one expert-parallel rank; ``layer``: weights of one pipeline layer.
KINDS = ("model", "model_part", "shard", "expert", "expert_optimizer", "layer")

#: Name of the file that names the newest tag, and of its counterpart for universal checkpoints.
LATEST = "latest"
LATEST_UNIVERSAL = "latest_universal"

#: Folder of a tag that holds tensors of the NVMe offload, and the one that holds universal parameters.
OFFLOADED = "offloaded_tensors"
UNIVERSAL = "zero"

#: Folders that hold leftovers of a save or a copy.
_TEMPORARY = re.compile(r"(^[.~_]?(tmp|temp|partial|incomplete|staging)([._-]|$))|(^\.)|([._-](tmp|temp|partial|part|"
                        r"incomplete|staging|bak|backup|old|saving)\d*$)|~$", re.IGNORECASE)  # fmt: skip

_PATTERNS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("shard", r"(?P<prefix>bf16_|fp16_)?zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d{2,})_?optim_states\.pt"),
        ("model_part", r"(?P<prefix>bf16_|fp16_)?zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d{2,})_?model_states\.pt"),
        ("model", r"mp_rank_(?P<mp>\d{2,})_model_states\.pt"),
        ("expert_optimizer", r"expp_rank_(?P<expp>\d+)_mp_rank_(?P<mp>\d{2,})_optim_states\.pt"),
        ("expert", r"(?:layer_(?P<layer>\d+)_)?expert_(?P<expert>\d+)_mp_rank_(?P<mp>\d{2,})_model_states\.pt"),
        ("layer", r"layer_(?P<layer>\d{2,})(?:-(?P<axes>[A-Za-z][\w-]*))?-model_states\.pt"),
    )
)
_MODEL_AXIS = re.compile(r"(?:^|-)model_(\d+)(?:-|$)")


@dataclass(frozen=True, slots=True)
class FileRole:
    """What a file's name says.

    Attributes:
        kind: one of ``KINDS``.
        dp_rank: data-parallel rank; None where the name has none.
        mp_rank: model-parallel rank; None where the name has none.
        bf16: the name begins with ``bf16_`` (only shards of bf16 runs do).
        layer: pipeline layer, or MoE layer of an expert.
        expert: global number of the expert.
        expp_rank: expert-parallel rank.
    """

    kind: str
    dp_rank: int | None = None
    mp_rank: int | None = None
    bf16: bool = False
    layer: int | None = None
    expert: int | None = None
    expp_rank: int | None = None


def parse(name: str) -> FileRole | None:
    """What a file name (without folder) says, or None when DeepSpeed does not write such a name."""
    for kind, pattern in _PATTERNS:
        found = pattern.fullmatch(name)
        if found is not None:
            return _role(kind, found.groupdict())
    return None


def same_place(one: FileRole, other: FileRole) -> bool:
    """Whether two names are those of one file; the same shard has its prefix or not, depending on the release."""
    return replace(one, bf16=False) == replace(other, bf16=False)


def _role(kind: str, groups: dict[str, str | None]) -> FileRole:
    axis = _MODEL_AXIS.search(groups.get("axes") or "")
    return FileRole(
        kind=kind,
        dp_rank=_number(groups.get("dp")),
        mp_rank=_number(axis.group(1)) if axis else _number(groups.get("mp")),
        bf16=groups.get("prefix") == "bf16_",
        layer=_number(groups.get("layer")),
        expert=_number(groups.get("expert")),
        expp_rank=_number(groups.get("expp")),
    )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def model_file(stage: int, mp_rank: int = 0, dp_rank: int = 0) -> str:
    """Name of the file with weights and counters; at stage 3 every data-parallel rank has its own."""
    if stage == 3:
        return f"zero_pp_rank_{dp_rank}_mp_rank_{mp_rank:02d}_model_states.pt"
    return f"mp_rank_{mp_rank:02d}_model_states.pt"


def shard_file(dp_rank: int, mp_rank: int = 0, bf16: bool = False) -> str:
    """Name of the file with the optimizer state of one rank. ``bf16`` follows the engine's precision, not its class."""
    return f"{'bf16_' if bf16 else ''}zero_pp_rank_{dp_rank}_mp_rank_{mp_rank:02d}_optim_states.pt"


def expert_file(layer: int, expert: int, mp_rank: int = 0) -> str:
    """Name of the file with the weights of one expert; ``layer`` -1 gives the name of before MoE layers had numbers."""
    prefix = f"layer_{layer}_" if layer >= 0 else ""
    return f"{prefix}expert_{expert}_mp_rank_{mp_rank:02d}_model_states.pt"


def expert_optimizer_file(expp_rank: int, mp_rank: int = 0) -> str:
    """Name of the file with the optimizer state of one expert-parallel rank."""
    return f"expp_rank_{expp_rank}_mp_rank_{mp_rank:02d}_optim_states.pt"


def expected_files(
    stage: int, dp_size: int, mp_size: int = 1, bf16: bool = False, shards: bool | None = None
) -> list[str]:
    """Names that a checkpoint without experts and without pipeline needs.

    Args:
        stage: ZeRO stage, 0 to 3.
        dp_size: data-parallel ranks at save.
        mp_size: model-parallel ranks at save.
        bf16: whether the engine ran in bf16.
        shards: whether optimizer state lies in shards; None: from stage 1 on. (Some releases write shards at stage 0 in
            bf16, where the optimizer is partitioned too.)
    """
    sharded = stage > 0 if shards is None else shards
    parts: Iterable[int] = range(dp_size) if stage == 3 else (0,)
    names = [model_file(stage, mp, dp) for mp in range(mp_size) for dp in parts]
    if sharded:
        names += [shard_file(dp, mp, bf16) for mp in range(mp_size) for dp in range(dp_size)]
    return names


def is_temporary(name: str) -> bool:
    """Whether a folder or file has the name of one that a save or a copy leaves behind."""
    return _TEMPORARY.search(name.rsplit("/", 1)[-1]) is not None
