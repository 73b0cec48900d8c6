"""The order of parameters in flat buffers, by name: what sees right bytes in the wrong place.

DeepSpeed restores weights by name but masters and moments by position. Parameters of equal total size that were
registered in another order, moved to another group, or dealt out round robin load without a word and train wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dspatch.live.attributes import plain_name
from dspatch.live.reading import GroupLayout

#: What to do about parameters in another order.
REGISTER = "register the layers, and list them in the param groups, in the order of the run that saved"


def filed_layout(value: Any) -> tuple[GroupLayout, ...] | None:
    """``param_shapes`` of a model file: one ordered dict for each group; None when the file has no such list."""
    if isinstance(value, dict):  # one group, as older releases wrote it
        value = [value]
    if not isinstance(value, list) or not all(isinstance(group, dict) for group in value):
        return None
    return tuple(
        tuple((plain_name(str(name)), tuple(int(size) for size in shape)) for name, shape in group.items())
        for group in value
    )


def inferred_layout(
    numbered: Sequence[GroupLayout], registered: Sequence[str], module: Any
) -> tuple[GroupLayout, ...] | None:
    """The order of a file that numbers its parameters and does not name them (stage 0 in fp32).

    Groups that list their parameters in the order of registration here did so at the save too, where that order is the
    order of the names in the file's module.

    Args:
        numbered: the groups as they are here.
        registered: names of the module, in order, as they are here.
        module: that of the file.

    Returns:
        None where groups have another order here, or where the file lacks a name: then nothing can be said.
    """
    if not isinstance(module, dict):
        return None
    here = {name: place for place, name in enumerate(registered)}
    there = {plain_name(str(name)): place for place, name in enumerate(module)}
    found = []
    for group in numbered:
        places = [here.get(name, -1) for name, _ in group]
        if places != sorted(places) or not all(name in here and name in there for name, _ in group):
            return None
        found.append(tuple(sorted(group, key=lambda one: there[one[0]])))
    return tuple(found)


def misplaced(live: Sequence[GroupLayout], filed: Sequence[GroupLayout]) -> list[tuple[str, str]]:
    """Parameters that lie elsewhere in the file.

    Parameters without elements take no place and do not count. Where only names differ, and none of the file's names is
    known here, parameters were renamed, which moves nothing.

    Returns:
        ``(name here, what the file has there)`` for each place that differs.
    """
    here, there = [_placed(group) for group in live], [_placed(group) for group in filed]
    if here == there:
        return []
    known = {name for group in here for name, _ in group}
    found = []
    for number in range(max(len(here), len(there))):
        mine = here[number] if number < len(here) else []
        saved = there[number] if number < len(there) else []
        for position in range(max(len(mine), len(saved))):
            one = mine[position] if position < len(mine) else None
            other = saved[position] if position < len(saved) else None
            renamed = one and other and one[1] == other[1] and other[0] not in known
            if one != other and not renamed:
                found.append((_said(one), f"{_said(other)} (group {number}, place {position})"))
    return found


def _placed(group: GroupLayout) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, shape) for name, shape in group if math.prod(shape)]


def _said(one: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if one is None else one[0]
