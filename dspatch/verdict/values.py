"""Plain live values against plain values of a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dspatch.checkpoint.inert import Opaque, enum_value
from dspatch.checkpoint.tensors import TensorRef
from dspatch.verdict.tensors import number_in

#: Elements of a tensor among plain values that are read; what is larger is no plain value.
_LARGEST = 4096

#: An answer for what cannot be compared: objects of classes whose code is not run.
_UNKNOWN = object()


def differences(
    live: Any, filed: Any, ignore: frozenset[str] = frozenset(), name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """``(name, live, in the file)`` of each value that differs.

    Of dicts only the keys that both sides have count: other releases of torch add some. Numbers are compared by value
    whatever holds them (a number, a tensor with one element), since loading may change that; NaN equals itself.
    Objects that a file names by class are compared through the attributes that the live side listed, or not at all.
    """
    if isinstance(filed, Opaque) and isinstance(live, Mapping):
        attributes = {key: filed.get(key, _UNKNOWN) for key in live}
        filed = {key: value for key, value in attributes.items() if value is not _UNKNOWN}
    if isinstance(live, Mapping) and isinstance(filed, Mapping):
        for key in live:
            if key in filed and key not in ignore:
                yield from differences(live[key], filed[key], ignore, f"{name}.{key}" if name else str(key))
        return
    here, there = simple(live), simple(filed)
    if _UNKNOWN in (here, there):
        return
    if isinstance(here, list) and isinstance(there, list):
        yield from _of_lists(here, there, ignore, name)
    elif not _same(here, there):
        yield name, here, there


def _of_lists(here: list[Any], there: list[Any], ignore: frozenset[str], name: str) -> Iterator[tuple[str, Any, Any]]:
    if len(here) != len(there):
        yield name, f"{len(here)} entries", f"{len(there)} entries"
        return
    for number, (one, other) in enumerate(zip(here, there, strict=True)):
        yield from differences(one, other, ignore, f"{name}[{number}]")


def simple(value: Any) -> Any:
    """A number, text, list, dict or None for what is one or holds one; a marker that equals nothing for the rest."""
    if isinstance(value, TensorRef):
        return number_in(value) if 0 < value.numel <= _LARGEST and value.is_contiguous else _UNKNOWN
    if isinstance(value, Opaque):
        inside = enum_value(value)
        return _UNKNOWN if inside is value else inside
    if value is None or isinstance(value, bool | int | float | str | complex):
        return value
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, Mapping):
        return value
    return _from_array(value)


def _from_array(value: Any) -> Any:
    # Live tensors and numpy numbers alike.
    numel = getattr(value, "numel", None)
    count = numel() if callable(numel) else getattr(value, "size", None)
    if not hasattr(value, "tolist") or not isinstance(count, int) or not 0 < count <= _LARGEST:
        return _UNKNOWN
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    found = value.tolist()
    while isinstance(found, list) and len(found) == 1:
        found = found[0]
    return found


def _same(here: Any, there: Any) -> bool:
    if isinstance(here, float) and isinstance(there, float) and math.isnan(here):
        return math.isnan(there)
    return bool(here == there)


def is_nothing(value: Any) -> bool:
    """Whether a plain value is what a fresh object has: nothing, zero, or one before the first (-1)."""
    found = simple(value)
    return found is None or (isinstance(found, int | float) and not isinstance(found, bool) and found in (0, -1))
