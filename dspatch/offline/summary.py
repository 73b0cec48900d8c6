"""What a tag holds, in a few numbers: who wrote it, how it is cut, how far it came, how large each component is."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from dspatch.offline.expected import common
from dspatch.offline.judge import Judged
from dspatch.offline.record import FileRecord


def summary(judged: Judged) -> dict[str, Any]:
    """Facts of one tag as plain data; the fields are described in ``report``. What no file tells is None."""
    read = [one for one in judged.records if one.damage is None]
    models = [one for one in read if one.kind in ("model", "model_part")]
    holders = [one for one in read if one.optimizer is not None]
    said = [one.optimizer for one in holders if one.optimizer is not None]
    laid = judged.layout
    groups: list[dict[str, Any]] = next((one["groups"] for one in said if one["groups"]), [])
    return {
        "ds_version": common(one.ds_version for one in read if one.ds_version),
        "torch_format": common(one.torch_format for one in read if one.torch_format),
        "stage": laid.stage,
        "precision": common(one.precision for one in (*models, *holders) if one.precision),
        "data_parallel": laid.dp,
        "model_parallel": laid.mp,
        "pipeline": laid.pipeline,
        "universal": laid.universal,
        "experts": next((one.num_experts for one in models if laid.moe and one.num_experts), []),
        "expert_parallel": common(one.ep_size for one in (*models, *holders) if one.ep_size),
        "global_steps": _told(models, "global_steps"),
        "global_samples": _told(models, "global_samples"),
        "skipped_steps": _told(models, "skipped_steps"),
        "optimizer": common(one["kind"] for one in said if one["kind"]),
        "optimizer_steps": sorted({step for one in said for step in one["steps"]})[:10],
        "groups": len(groups) or None,
        "lr": [group.get("lr") for group in groups],
        "weight_decay": [group.get("weight_decay") for group in groups],
        "scheduler": any(one.has_scheduler for one in models) if models else None,
        "scaler": next((one["scaler"] for one in said if one["scaler"]), None),
        "client_keys": sorted({key for one in models for key in one.client_keys}),
        "parameters": _parameters(models, read),
        "components": _components(judged, read),
        "bytes": sum(one.size for one in judged.records),
        "files_expected": len(laid.expected),
        "files_found": len(judged.records),
    }


def _told(models: Sequence[FileRecord], name: str) -> Any:
    values: Iterable[Hashable] = (getattr(one, name) for one in models if getattr(one, name) is not None)
    return common(values)


def _parameters(models: Sequence[FileRecord], read: Sequence[FileRecord]) -> dict[str, Any]:
    """Elements that are trained and that are frozen; the model-parallel ranks added up, their shared ones counted twice."""
    one_each = {one.mp_rank or 0: one for one in reversed(models)}
    trained = sum(total for one in one_each.values() for _, total, _ in one.shapes)
    frozen = sum(one.frozen[1] for one in one_each.values() if one.frozen)
    if not trained:
        # Stage 0 lists no shapes: what has a moment is trained.
        trained = sum(max((sum(one.optimizer["masters"]), _first_moments(one.optimizer)), default=0)
                      for one in one_each.values() if one.optimizer is not None)  # fmt: skip
    if any(one.kind == "parameter" for one in read) and not trained:
        trained = sum(one.components.get("parameter", [0, 0, 0])[1] for one in read if one.name.endswith("/fp32.pt"))
    share = frozen / (frozen + trained) if frozen + trained else 0.0
    return {"trained": trained or None, "frozen": frozen, "frozen_share": round(share, 4)}


def _first_moments(optimizer: dict[str, Any]) -> int:
    return sum(next(iter(one.values()), 0) for one in optimizer["states"])


def _components(judged: Judged, read: Sequence[FileRecord]) -> dict[str, dict[str, int]]:
    """Component -> tensors, elements and bytes in all files; masters and moments with their padding."""
    found: dict[str, dict[str, int]] = {}
    # Stage 0 with experts writes the optimizer of expert-parallel rank 0 twice: into its own file, and the model's.
    twice = any(one.kind == "expert_optimizer" and one.optimizer is not None for one in read)
    for one in read:
        for component, (tensors, elements, size) in one.components.items():
            if twice and one.kind == "model" and component in ("masters", "moments"):
                continue
            name = component
            if component == "parameter":
                name = "masters" if one.name.endswith("/fp32.pt") else "moments"
            total = found.setdefault(name, {"tensors": 0, "elements": 0, "bytes": 0})
            total["tensors"] += tensors
            total["elements"] += elements
            total["bytes"] += size
    order = ("weights", "experts", "frozen", "buffers", "masters", "moments")
    return {
        name: found[name] for name in order if name in found and (found[name]["elements"] or judged.layout.stage != 3)
    }
