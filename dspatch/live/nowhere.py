"""Optimizer state that an engine keeps where no file has it: it is lost with the process, whatever a load does.

Twin-Flow (``offload_optimizer.ratio`` below 1) steps the sub-groups that stay on the accelerator with an optimizer of its
own, ``backup_optimizer`` (``DeepSpeedZeroOptimizer_Stage3._optimizer_step``); SuperOffload steps them in a child process;
ZenFlow steps selected columns with ``selective_optimizer``. None of them has a part in ``state_dict``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dspatch.live.attributes import Names, class_names

#: Components that are lost.
LOST = ("moments", "optimizer_step")

_SUPER_OFFLOAD = "SuperOffload keeps optimizer state in a child process and writes it to no file"
_TWIN_FLOW = "Twin-Flow keeps the state of sub-groups on the accelerator outside of what it writes"
_ZEN_FLOW = "ZenFlow keeps the state of selected columns outside of what it writes"


@dataclass(frozen=True, slots=True)
class Nowhere:
    """Why state is in no file.

    Attributes:
        reason: which feature keeps it, and where.
        names: the parameters; empty: cannot be told.
    """

    reason: str
    names: tuple[str, ...] = ()


def state_in_no_file(engine: Any) -> Nowhere | None:
    """The optimizer state of an engine that its checkpoints lack; None where they hold all of it."""
    wrapper = getattr(engine, "optimizer", None)
    kinds = class_names(wrapper)
    if "SuperOffloadOptimizer_Stage3" in kinds:
        return Nowhere(_SUPER_OFFLOAD)
    if any("ZenFlow" in kind for kind in kinds) or getattr(wrapper, "selective_optimizer", None) is not None:
        return Nowhere(_ZEN_FLOW)
    names = tuple(_on_the_accelerator(engine, wrapper))
    return Nowhere(_TWIN_FLOW, names) if names else None


def _on_the_accelerator(engine: Any, wrapper: Any) -> Iterator[str]:
    """Parameters of the sub-groups that Twin-Flow does not step on the CPU."""
    if getattr(wrapper, "backup_optimizer", None) is None:
        return
    names = Names(engine)
    for index, device in getattr(wrapper, "subgroup_to_device", {}).items():
        if device != "cpu":
            yield from (names.of(param) for param in wrapper.fp16_groups[index])
