"""Editing shards in a process that has no DeepSpeed: its classes are replaced by empty ones of the same names."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.support import damage


class _Empty:
    """Keeps what it was made from, so that it is pickled as it was."""

    def __init__(self, *args: Any) -> None:
        self.__dict__["_made_from"] = args

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name != "_made_from"}
        return (type(self), self.__dict__.get("_made_from", ()), state or None)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if not module.startswith("deepspeed"):
            return super().find_class(module, name)
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        place = sys.modules[module]
        if not hasattr(place, name):
            setattr(place, name, type(name, (_Empty,), {"__module__": module}))
        return getattr(place, name)


@contextmanager
def _stand_ins() -> Iterator[ModuleType]:
    module = ModuleType("pickle_with_stand_ins")
    module.__dict__.update({**pickle.__dict__, "Unpickler": _Unpickler})
    before = set(sys.modules)
    try:
        yield module
    finally:
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "deepspeed":
                del sys.modules[name]


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Load a file, let ``change`` edit its tree in place, and save it, with right checksums."""
    with _stand_ins() as reader:
        tree = torch.load(path, map_location="cpu", weights_only=False, pickle_module=reader)
        change(tree)
        torch.save(tree, path)


def set_tensor(path: Path, keys: tuple[Any, ...], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace one tensor of a file by ``change`` of it, found by its key path."""
    damage.set_tensor(path, keys, lambda one: change(one.detach()), rewrite)
