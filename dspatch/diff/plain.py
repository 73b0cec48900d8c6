"""Trees of numbers and texts as one flat mapping, so that two of them can be compared key by key."""

from __future__ import annotations

from typing import Any

from dspatch.checkpoint.content import scalar
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.inert import Opaque
from dspatch.checkpoint.tensors import TensorRef

#: Entries of one tree that are looked at, and characters of one text that are kept.
_MOST, _LONGEST = 20_000, 200
#: Steps into containers: a few that hold each other twice, fifty deep, would go on for ever.
_MOST_VISITS = 200_000
#: Larger integers are no counters, and cannot be written as decimals without limit.
_LARGEST = 1 << 63


def flat(value: Any) -> dict[str, Any]:
    """``{"a.0.b": 1}`` for ``{"a": [{"b": 1}]}``; empty for None and for empty containers.

    A tensor of one element counts as its number, a larger one as a text of dtype, shape and checksum, and an object as
    its class and attributes.
    """
    found: dict[str, Any] = {}
    todo: list[tuple[str, Any, int]] = [("", value, 0)]
    visits = 0
    while todo and len(found) < _MOST and visits < _MOST_VISITS:
        path, one, depth = todo.pop()
        visits += 1
        inside: list[tuple[Any, Any]] | None = None
        if isinstance(one, dict):
            inside = list(one.items())
        elif isinstance(one, list | tuple):
            inside = list(enumerate(one))
        elif isinstance(one, set | frozenset):
            inside = list(enumerate(sorted(one, key=repr)))
        elif isinstance(one, Opaque) and one.args is not None:
            inside = [("class", one.full_name), ("args", one.args), ("state", one.state), ("items", one.items)]
        if inside is None or depth > 50:
            if path or one is not None:
                found[path] = _leaf(one)
            continue
        todo.extend((f"{path}.{key}" if path else str(key), child, depth + 1) for key, child in reversed(inside))
    return found


def _leaf(value: Any) -> Any:
    if isinstance(value, TensorRef):
        return _tensor(value)
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return f"a number of {value.bit_length():,} bits"
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict | list | tuple | set | frozenset):
        return f"{type(value).__name__} too deep to look at"
    text = value if isinstance(value, str) else repr(value[:_LONGEST] if isinstance(value, bytes) else value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _tensor(ref: TensorRef) -> Any:
    try:
        number = scalar(ref)
    except Damaged:
        number = None
    if number is not None:
        return number
    crc = f", CRC-32 {ref.record.crc32:08x}" if ref.is_whole_record and ref.record.crc32 is not None else ""
    return f"tensor of {ref.dtype}, shape {list(ref.shape)}{crc}"
