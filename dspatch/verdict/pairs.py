"""Live tensors of which one is made from the other: masters and weights, a partition and its copies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from dspatch.live.reading import LivePair
from dspatch.verdict.memory import same_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

#: Elements that are cast and compared at once: the cast ones are still in the second-level cache when they are compared.
_AT_ONCE = 1 << 17

#: Below this many elements, starting threads costs more than it saves.
_WORTH_THREADS = 1 << 20

#: What a sampled comparison looks at, of each pair.
_SAMPLED_FRAGMENTS, _SAMPLED_ELEMENTS = 16, 4096


def differing(pair: LivePair, sampled: bool = False) -> list[str]:
    """Names of the parameters whose ``copy`` is not bit for bit ``source`` cast to its dtype.

    ``sampled``: look at the first elements of a few parameters only; another step or another run differs in any of them.
    """
    fragments = pair.fragments
    if sampled:
        some = fragments[:: max(1, len(fragments) // _SAMPLED_FRAGMENTS)]
        fragments = tuple(replace(one, numel=min(one.numel, _SAMPLED_ELEMENTS)) for one in some)
    return [one.name for one in fragments if not _cast_equal(_part(pair.source, one), _part(pair.copy, one))]


def differing_in(pairs: Sequence[LivePair], threads: int, sampled: bool = False) -> list[list[str]]:
    """``differing`` of each pair, on several threads: casts and comparisons run outside the GIL."""
    if threads > 1 and not sampled and sum(one.source.numel() for one in pairs) > _WORTH_THREADS:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(differing, pairs))
    return [differing(one, sampled) for one in pairs]


def is_rebuilt(pair: LivePair) -> bool:
    """Whether ``source`` holds no more than ``copy``: it was made from it, with the precision of the copy."""
    return pair.source.dtype != pair.copy.dtype and all(
        _cast_equal(_part(pair.copy, one), _part(pair.source, one)) for one in pair.fragments
    )


def exchanged(stale: Sequence[tuple[LivePair, Sequence[str]]]) -> bool:
    """Whether a ``source`` that its ``copy`` was not made from is bit for bit that of another one's ``copy``.

    Args:
        stale: pairs, and the parameters in them that differ.
    """
    parts = [
        (_part(pair.source, one), _part(pair.copy, one))
        for pair, names in stale
        for one in pair.fragments
        if one.name in names
    ]
    by_head: dict[tuple[int, bytes], list[torch.Tensor]] = {}
    for _, copy in parts:
        by_head.setdefault((copy.numel(), _head(copy, copy)), []).append(copy)
    return any(
        _cast_equal(source, other)
        for source, copy in parts
        for other in by_head.get((source.numel(), _head(source, copy)), ())
        if other is not copy
    )


def _head(tensor: torch.Tensor, like: torch.Tensor) -> bytes:
    """The first elements, cast to the dtype of ``like``."""
    import torch

    return bytes(tensor[:_SAMPLED_ELEMENTS].to(like.dtype).cpu().view(torch.uint8).numpy())


def _part(tensor: torch.Tensor, fragment: object) -> torch.Tensor:
    start, numel = fragment.start, fragment.numel  # type: ignore[attr-defined]
    return tensor.detach().reshape(-1).narrow(0, start, numel)


def _cast_equal(source: torch.Tensor, copy: torch.Tensor) -> bool:
    import torch

    cast = torch.empty(min(_AT_ONCE, source.numel()), dtype=copy.dtype, device=source.device)
    for start in range(0, source.numel(), _AT_ONCE):
        count = min(_AT_ONCE, source.numel() - start)
        one = cast[:count].copy_(source.narrow(0, start, count)).cpu().view(torch.uint8)
        other = copy.narrow(0, start, count).cpu().view(torch.uint8)
        if not same_bytes(one, other):
            return False
    return True
