"""Optimizer state that ZeRO-3 keeps in files between steps (NVMe offload), as memory maps of those files.

``OptimizerSwapper.swap_params_info`` says which tensors of a sub-group lie in which file: its masters always, its moments
once the optimizer has made them. What is not in that list is not read by the next step, whatever lies in the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Swapped:
    """What of one sub-group lies in swap files.

    Attributes:
        master: its masters, mapped from the file that the next step reads.
        name: of that file.
        entries: the optimizer's state of it; what lies in a file is mapped, and what the next step would find empty is left
            out.
        names: key of the state -> name of its file, for what is mapped.
    """

    master: torch.Tensor
    name: str
    entries: Mapping[str, Any]
    names: Mapping[str, str]


def swapped_state(wrapper: Any, master: Any, optimizer: Any) -> Swapped | None:
    """What of a sub-group lies in swap files; None where its masters do not.

    Args:
        wrapper: ``engine.optimizer`` of stage 3.
        master: the sub-group's tensor, which has no elements between steps.
        optimizer: the torch optimizer.

    Raises:
        RuntimeError: a swap file is gone or too short.
    """
    info = _infos(wrapper).get(getattr(master, "ds_id", None))
    if info is None:
        return None
    paths, numel = dict(_paths(info)), int(info.numel())
    entries: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key, value in optimizer.state.get(master, {}).items():
        emptied = hasattr(value, "dim") and value.dim() > 0 and not value.numel()
        if not emptied:
            entries[key] = value
        elif id(value) in paths:
            entries[key] = _mapped(paths[id(value)], numel, value.dtype)
            names[key] = os.path.basename(paths[id(value)])
    own = paths[id(master)]
    return Swapped(_mapped(own, numel, master.dtype), os.path.basename(own), entries, names)


def swap_names(wrapper: Any) -> list[str]:
    """Names of the files that hold this rank's masters; empty without NVMe offload."""
    return [os.path.basename(next(_paths(info))[1]) for info in _infos(wrapper).values()]


def swap_rank(engine: Any) -> int:
    """The number in the name of this rank's folder of swap files (``DeepSpeedEngine.save_checkpoint``)."""
    local = getattr(engine, "use_node_local_storage", None)
    return int(engine.local_rank if callable(local) and local() else engine.global_rank)


def _infos(wrapper: Any) -> Mapping[Any, Any]:
    swapper = getattr(wrapper, "optimizer_swapper", None)
    return getattr(swapper, "swap_params_info", {})


def _paths(info: Any) -> Iterator[tuple[int, str]]:
    """Identity of a tensor -> its file. Older releases keep two lists, newer ones a context for each tensor."""
    plain = getattr(info, "swap_paths", None)
    for number, one in enumerate(info.tensors):
        yield (id(one), plain[number]) if plain is not None else (id(one.compute_tensor), one.swap_path)


def _mapped(path: str, numel: int, dtype: Any) -> torch.Tensor:
    import torch

    size = numel * torch.empty(0, dtype=dtype).element_size()
    if os.stat(path).st_size < size:  # `from_file` would make the file longer
        raise RuntimeError(f"swap file {path} is shorter than its {size:,} bytes")
    return torch.from_file(path, shared=False, size=numel, dtype=dtype)
