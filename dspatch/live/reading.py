"""What a reader gives back: live objects beside the place where a checkpoint file holds the same thing.

Paths are key paths in a file's tree (``Tree.get``). ``role`` says which file of the rank: ``"model"`` (weights and
counters) or ``"shard"`` (optimizer state).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from dspatch.live.nowhere import Nowhere

Path = tuple[Any, ...]

#: name and shape of each parameter of one group, in the order in which it lies in the flat buffer.
GroupLayout = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """The part of one parameter that lies in a flat tensor.

    Attributes:
        name: the parameter.
        start: first element inside the flat tensor.
        numel: elements.
    """

    name: str
    start: int
    numel: int


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A live tensor whose elements a file holds.

    Attributes:
        component: such as ``"masters"``.
        label: what it is, for messages: ``"group 0"``, or a parameter's name.
        role: the file.
        path: where it lies in the file's tree.
        tensor: the live tensor.
        numel: how many leading elements count; what follows is padding that a file may or may not hold.
        fragments: the parameters inside, in order of ``start``; what none of them covers is padding.
        missing: what it means when the file has nothing at ``path``; empty: the checkpoint lacks it.
        swap: name of the swap file that holds the elements, where ``path`` has an empty tensor (NVMe offload).
    """

    component: str
    label: str
    role: str
    path: Path
    tensor: torch.Tensor
    numel: int
    fragments: tuple[Fragment, ...]
    missing: str = ""
    swap: str = ""


@dataclass(frozen=True, slots=True)
class LiveState:
    """The optimizer's state of one tensor: its moments, its step, and whatever else the optimizer keeps.

    Attributes:
        label: such as ``"group 0"``.
        role: the file.
        paths: where the file may hold it; the first one whose parent exists counts. A parent without the entry means
            that nothing had been stored for it yet, which is right before the first step.
        entries: name of the state -> tensor or number.
        size: elements of the tensor that the state belongs to; entries of that size are moments.
        numel: how many leading elements count.
        fragments: the parameters inside.
        swaps: name of the state -> name of the swap file that holds its elements (NVMe offload).
    """

    label: str
    role: str
    paths: tuple[Path, ...]
    entries: Mapping[str, Any]
    size: int
    numel: int
    fragments: tuple[Fragment, ...]
    swaps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveValue:
    """Plain values: numbers, texts, and dicts and lists of them.

    Attributes:
        component: such as ``"param_groups"``.
        label: what it is, for messages.
        role: the file.
        path: where it lies in the file's tree.
        value: the live value. Of a dict only the keys that both sides have are compared.
        ignore: keys that may differ.
        missing: what it means when the file has nothing at ``path``; empty: the checkpoint lacks it.
        optional: nothing is wrong when the file has nothing at ``path``.
        computed: what DeepSpeed puts in place when the file has nothing at ``path``, in words; then it cannot be checked.
    """

    component: str
    label: str
    role: str
    path: Path
    value: Any
    ignore: frozenset[str] = frozenset()
    missing: str = ""
    optional: bool = False
    computed: str = ""


@dataclass(frozen=True, slots=True)
class LivePair:
    """Two live tensors of which one is made from the other: ``copy`` is bit for bit ``source`` cast to its dtype.

    Attributes:
        component: what is wrong when they differ.
        label: what the pair is, for messages.
        source: the tensor that the next step starts from.
        copy: the tensor that was made from it.
        fragments: the parameters inside, with starts that hold in both tensors; only these are compared.
        hint: what to do when they differ.
        role, path, start: where a file holds ``source``, when ``copy`` lies in no file itself (ZeRO-3 weights): its
            elements begin with number ``start`` of the tensor at ``path``.
        swap: as in ``LiveTensor``.
    """

    component: str
    label: str
    source: torch.Tensor
    copy: torch.Tensor
    fragments: tuple[Fragment, ...]
    hint: str = ""
    role: str = ""
    path: Path = ()
    start: int = 0
    swap: str = ""


@dataclass(slots=True)
class Reading:
    """One rank's view of an engine.

    Attributes:
        family: the reader that was used: ``"ZeRO-1/2"``, ``"ZeRO-3"``, ``"BF16"``, ``"FP16 fused"``,
            ``"FP16 unfused"``, ``"plain"``, ``"none"`` (the engine has no optimizer) or ``"unknown"``.
        stage: ZeRO stage.
        rank: global rank.
        tensors, states, values, pairs: what can be compared.
        layout: the parameters of each flat group, in order; None where the file has no such list.
        numbered, registered: without masters, the parameters of each group in the order of the optimizer's state, and the
            module's names in the order of the file.
        not_checked: component -> why nothing can be said about it.
        nowhere: component -> why no file has it, although the engine keeps it.
        no_place: component -> (role, path) of what a file may hold and this engine has no place for.
        swap_rank: whose folder of swap files is this rank's own (NVMe offload).
    """

    family: str
    stage: int
    rank: int
    tensors: list[LiveTensor] = field(default_factory=list)
    states: list[LiveState] = field(default_factory=list)
    values: list[LiveValue] = field(default_factory=list)
    pairs: list[LivePair] = field(default_factory=list)
    layout: tuple[GroupLayout, ...] | None = None
    numbered: tuple[GroupLayout, ...] = ()
    registered: tuple[str, ...] = ()
    not_checked: dict[str, str] = field(default_factory=dict)
    nowhere: dict[str, Nowhere] = field(default_factory=dict)
    no_place: dict[str, tuple[str, Path]] = field(default_factory=dict)
    swap_rank: int = 0
