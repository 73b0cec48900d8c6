"""Which parameter each piece of optimizer state belongs to at stage 0, where the file says only group and position.

The model file lists weights in the order of the module, and a group takes its parameters in that order, so a position is
found by shape; where there are masters, one must also round to the weight. What stays ambiguous is not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.shard import FileFacts
from dspatch.checkpoint.tensors import TensorRef
from dspatch.checkpoint.unpickle import Tree
from dspatch.offline.rounding import rounds_to


@dataclass(slots=True)
class Place:
    """Where the state of a parameter lies: from element ``at`` of ``master`` (None without) and of each of ``state``."""

    master: TensorRef | None
    state: dict[str, TensorRef] = field(default_factory=dict)
    at: int = 0


def places(tree: Tree, model: FileFacts) -> dict[str, Place] | None:
    """Parameter -> place, for a model file with optimizer state; None where the file leaves it open."""
    optimizer = model.optimizer
    if optimizer is None or not model.module:
        return None
    queues = _queues(tree, model)
    order = list(_order(model))
    if queues is None:
        return None
    all_trained = sum(queue.left for queue in queues) == sum(ref.numel for _, ref in order)
    found: dict[str, Place] = {}
    for name, ref in order:
        fitting = [queue for queue in queues if queue.fits(ref)]
        certain = [queue.rounds(ref) for queue in fitting]
        if any(certain):
            fitting = [queue for queue, sure in zip(fitting, certain, strict=True) if sure]
        elif not all_trained:
            # Without masters that say so, a frozen parameter of the same shape could be taken for the next one.
            if any(sure is None for sure in certain):
                return None
            continue
        if len(fitting) != 1:
            return None
        found[name] = fitting[0].take(ref)
    return found if not any(queue.left for queue in queues) else None


def _order(model: FileFacts) -> Iterator[tuple[str, TensorRef]]:
    """Parameters of the model as the module lists them, tied ones once."""
    seen = set()
    buffers = set(model.buffer_names)
    for name, ref in (model.module or {}).items():
        place = (id(ref.storage), ref.storage_offset, ref.shape)
        if name not in buffers and name not in model.shared and (place not in seen or not ref.numel):
            seen.add(place)
            yield name, ref


class _Queue:
    """One group: its tensors, and how far they are given away."""

    def __init__(self, masters: list[TensorRef], states: list[dict[str, TensorRef]], is_flat: bool) -> None:
        self._masters, self._states, self._flat = masters, states, is_flat
        self._next = self._at = 0

    @property
    def left(self) -> int:
        """Elements that belong to no parameter yet."""
        listed = self._masters or [next(iter(one.values())) for one in self._states]
        return sum(ref.numel for ref in listed[self._next :]) - self._at

    def fits(self, weight: TensorRef) -> bool:
        """Whether the next tensor has this shape, or enough elements."""
        listed = self._masters or [next(iter(one.values())) for one in self._states]
        if self._next >= len(listed):
            return False
        head = listed[self._next]
        return self._at + weight.numel <= head.numel if self._flat else head.shape == weight.shape

    def rounds(self, weight: TensorRef) -> bool | None:
        """Whether the master gives the weight; None when that cannot be told."""
        if not self._masters or not weight.is_contiguous or not weight.numel:
            return None
        try:
            return rounds_to(self._masters[self._next], self._at, weight)
        except Damaged:
            return None

    def take(self, weight: TensorRef) -> Place:
        """Give the next tensor, or the next elements of it, away."""
        master = self._masters[self._next] if self._masters else None
        state = self._states[self._next] if self._next < len(self._states) else {}
        made = Place(master, state, self._at)
        if self._flat:
            self._at += weight.numel
        if not self._flat or master is None or self._at == master.numel:
            self._next, self._at = self._next + 1, 0
        return made


def _queues(tree: Tree, model: FileFacts) -> list[_Queue] | None:
    optimizer = model.optimizer
    assert optimizer is not None
    path: tuple[Any, ...] = optimizer.state_path[:-1]
    groups = tree.get((*path, "param_groups"))
    masters = tree.get(optimizer.masters_path) if optimizer.masters_path else None
    if not isinstance(groups, list) or not groups:
        return None
    made = []
    for at, group in enumerate(groups):
        keys = group.get("params") if isinstance(group, dict) else None
        if not isinstance(keys, list):
            return None
        own = masters[at] if isinstance(masters, list) and at < len(masters) else []
        is_flat = isinstance(own, TensorRef)
        listed = [own] if isinstance(own, TensorRef) else [one for one in own if isinstance(one, TensorRef)]
        states = [{kind: ref for kind, ref in optimizer.state.get(key, {}).items()
                   if isinstance(ref, TensorRef) and kind != "step"} for key in keys]  # fmt: skip
        # Without masters a parameter is known by its state alone; one without state would leave a gap.
        if (not listed and not all(states)) or (listed and len(listed) != len(keys)):
            return None
        made.append(_Queue(listed, states, is_flat))
    return made
