"""Live tensors of which one is made from the other: masters and weights, a partition and its copies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dspatch.live.reading import LivePair
from dspatch.verdict.memory import same_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

#: Elements that are cast and compared at once.
_AT_ONCE = 1 << 20


def differing(pair: LivePair) -> list[str]:
    """Names of the parameters whose ``copy`` is not bit for bit ``source`` cast to its dtype."""
    return [one.name for one in pair.fragments if not _cast_equal(_part(pair.source, one), _part(pair.copy, one))]


def differing_in(pairs: Sequence[LivePair], threads: int) -> list[list[str]]:
    """``differing`` of each pair, on several threads: casts and comparisons run outside the GIL."""
    if threads > 1 and sum(one.source.numel() for one in pairs) > _AT_ONCE:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(differing, pairs))
    return [differing(one) for one in pairs]


def is_rebuilt(pair: LivePair) -> bool:
    """Whether ``source`` holds no more than ``copy``: it was made from it, with the precision of the copy."""
    return pair.source.dtype != pair.copy.dtype and all(
        _cast_equal(_part(pair.copy, one), _part(pair.source, one)) for one in pair.fragments
    )


def _part(tensor: torch.Tensor, fragment: object) -> torch.Tensor:
    start, numel = fragment.start, fragment.numel  # type: ignore[attr-defined]
    return tensor.detach().reshape(-1).narrow(0, start, numel)


def _cast_equal(source: torch.Tensor, copy: torch.Tensor) -> bool:
    import torch

    for start in range(0, source.numel(), _AT_ONCE):
        count = min(_AT_ONCE, source.numel() - start)
        one = source.narrow(0, start, count).to(copy.dtype).cpu().view(torch.uint8)
        other = copy.narrow(0, start, count).cpu().view(torch.uint8)
        if not same_bytes(one, other):
            return False
    return True
