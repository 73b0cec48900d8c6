"""Looking at objects whose attributes differ between releases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dspatch.live.reading import Fragment, GroupLayout

#: What wrappers put in front of or inside parameter names; the parameter behind is the same.
_WRAPPINGS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def class_names(thing: object) -> frozenset[str]:
    """Names of an object's class and all its base classes: how a family is told without importing DeepSpeed."""
    return frozenset(one.__name__ for one in type(thing).__mro__)


def flag(thing: object, name: str, default: bool = False) -> bool:
    """A boolean that is an attribute in some releases and a method in others; ``default`` where it is neither."""
    value = getattr(thing, name, None)
    if callable(value):
        try:
            value = value()
        except Exception:  # a configuration that the method did not expect
            return default
    return default if value is None else bool(value)


def base_optimizer(engine: Any) -> Any:
    """The torch optimizer inside DeepSpeed's; None for an engine without one."""
    optimizer = getattr(engine, "optimizer", None)
    return getattr(optimizer, "optimizer", optimizer)


def without_reader(engine: Any) -> str:
    """What kind of engine or checkpoint this is, if its state has no reader yet; else empty."""
    if flag(engine, "load_universal_checkpoint"):
        return "universal checkpoint"
    if "PipelineEngine" in class_names(engine):
        return "pipeline"
    if flag(engine, "has_moe_layers"):
        return "mixture of experts"
    return ""


def open_save(engine: Any) -> str | None:
    """Tag of a save that a decoupled checkpoint engine is still writing; None where there is none."""
    writer: Any = getattr(engine, "checkpoint_engine", None)
    if not flag(writer, "is_decoupled"):
        return None
    info = writer.get_commit_info()
    return None if info is None else str(getattr(info, "tag", info))


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers added to it."""
    for wrapping in _WRAPPINGS:
        name = name.replace(wrapping, "")
    return name


class Names:
    """Parameter -> name, as the engine gave them when it was built (``DeepSpeedEngine.param_names``)."""

    def __init__(self, engine: Any) -> None:
        self._names: dict[int, str] = {}
        # Kept alive by the engine, so that ids stay unique while this object is used.
        for name, param in engine.module.named_parameters():
            self._names[id(param)] = plain_name(name)
        for param, name in dict(getattr(engine, "param_names", None) or {}).items():
            self._names[id(param)] = plain_name(name)

    def of(self, param: Any) -> str:
        """The name, or ``"(unnamed parameter)"`` for one that the module does not have."""
        return self._names.get(id(param), "(unnamed parameter)")


def rank_in(group: Any) -> tuple[int, int]:
    """This rank's number in a process group, and the group's size. No communication."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group=group), dist.get_world_size(group=group)


def partition_fragments(
    names: Names, params: Sequence[Any], offsets: Sequence[int] | None, begin: int, end: int
) -> tuple[Fragment, ...]:
    """Which parameters lie in elements ``begin`` to ``end`` of a flat buffer, with starts counted from ``begin``.

    Args:
        names: of the parameters.
        params: in the order in which they lie in the buffer.
        offsets: where each of them starts in the buffer; None: one after the other.
        begin: first element of the partition.
        end: first element behind it.
    """
    found, position = [], 0
    for number, param in enumerate(params):
        start = position if offsets is None else int(offsets[number])
        position = start + param.numel()
        low, high = max(start, begin), min(position, end)
        if low < high:
            found.append(Fragment(names.of(param), low - begin, high - low))
    return tuple(found)


def data_rank(engine: Any) -> tuple[int, int]:
    """This rank's number among those that share the optimizer's state, and their count; each one reads files of its own."""
    group = getattr(engine.optimizer, "dp_process_group", None)
    # At stage 3 an engine without optimizer has no group of its own, and every rank reads a file of its own all the same.
    return rank_in(group) if group is not None or int(engine.zero_optimization_stage()) == 3 else (0, 1)


def covered(fragments: Iterable[Fragment]) -> int:
    """Elements up to the end of the last fragment: what is left without padding at the tail."""
    return max((one.start + one.numel for one in fragments), default=0)


def layout_of(engine: Any) -> tuple[GroupLayout, ...] | None:
    """The ordered (name, shape) lists that the engine would write as ``param_shapes``, or None when it cannot tell."""
    shapes = getattr(engine, "_get_zero_param_shapes", None)
    if shapes is None:
        return None
    try:
        groups = shapes()
    except Exception:  # raised for optimizers that have no flat groups; attributes differ between releases
        return None
    return tuple(
        tuple((plain_name(str(name)), tuple(int(size) for size in shape)) for name, shape in group.items())
        for group in groups
    )
