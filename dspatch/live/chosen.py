"""What a configuration chose for an optimizer and a load may replace: clipping, the loss scaler, hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspatch.live.attributes import base_optimizer
from dspatch.live.scaler import CONFIGURED, scale_holder

#: Of the loss scale of stage 0 what no step changes.
_OF_STAGE_0 = ("dynamic_loss_scale", "scale_factor", "scale_window", "min_loss_scale")

#: Of a param group what a schedule moves, and what is no hyperparameter.
_MOVING = frozenset(("params", "lr", "initial_lr", "step", "base_momentum", "max_momentum"))


def fixed(engine: Any) -> dict[str, Any]:
    """Clipping and loss scaler, by name: what training never changes by itself."""
    optimizer = engine.optimizer
    found = {"gradient clipping": getattr(optimizer, "clip_grad", None)}
    scaler = getattr(optimizer, "loss_scaler", None)
    holder = scale_holder(optimizer)
    for owner, names in ((scaler, CONFIGURED), (holder, _OF_STAGE_0)):
        found |= {f"loss scaler {name}": getattr(owner, name) for name in names if hasattr(owner, name)}
    dynamic = getattr(scaler, "dynamic", getattr(holder, "dynamic_loss_scale", None))
    if dynamic is False:
        found["loss scale"] = getattr(scaler, "cur_scale", getattr(holder, "cur_scale", None))
    return {name: value for name, value in found.items() if _plain(value)}


def hyperparameters(engine: Any) -> dict[str, Any]:
    """Of each param group what no schedule is expected to move, by name."""
    groups = getattr(base_optimizer(engine), "param_groups", None) or ()
    return {
        f"group {number} {name}": value
        for number, group in enumerate(groups)
        for name, value in group.items()
        if name not in _MOVING and _plain(value)
    }


def written_to(engine: Any) -> dict[int, int]:
    """Each tensor of the optimizer's state, by identity, with the count of writes that torch keeps of it."""
    state = getattr(base_optimizer(engine), "state", None) or {}
    return {
        id(value): int(value._version)
        for entries in list(state.values())
        for value in entries.values()
        if hasattr(value, "_version") and value.dim()
    }


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """``name: value before, value now`` of what both have and is another."""
    return [
        f"{name}: {before[name]!r} was configured, {value!r} is in force"
        for name, value in after.items()
        if name in before and before[name] != value
    ]


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) or (
        isinstance(value, tuple | list) and all(isinstance(one, int | float) for one in value)
    )
