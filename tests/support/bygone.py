"""What releases older than the torch of the tests import, and what newer packages no longer have under those names.

Only import names are filled in, in the processes of the tests: what such a release saves and loads is its own code. Nothing
of this is part of dspatch, which needs none of it in an environment of that time.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import logging
import os
import sys
import types
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

#: Set for rank processes of such a release.
VARIABLE = "DEEPSPEED_OF_OLD"

#: Backends that the CPU accelerator of such releases imports without using anything of them over gloo.
_BACKENDS = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")


def is_bygone(tree: Path) -> bool:
    """Whether the release unpacked at ``tree`` takes from torch what newer ones no longer have.

    It is told by ``elasticity/elastic_agent.py``, which every ``import deepspeed`` reads where a release has it.
    """
    agent = tree / "deepspeed/elasticity/elastic_agent.py"
    return agent.is_file() and "server.api import log, _get_socket_with_port" in agent.read_text(encoding="utf-8")


def stand_in() -> None:
    """Fill in the names. To be called before ``import deepspeed``."""
    for name in _BACKENDS:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules.setdefault(name, module)
    agent = importlib.import_module("torch.distributed.elastic.agent.server.api")
    sockets = importlib.import_module("torch.distributed.elastic.utils.distributed")
    _fill(agent, log=logging.getLogger(agent.__name__), _get_socket_with_port=sockets.get_socket_with_port)
    _fill(importlib.import_module("numpy"), BUFSIZE=8192)
    if not _knows_pydantic_2():
        sys.modules["pydantic"] = importlib.import_module("pydantic.v1")


def use_gloo() -> None:
    """Let such a release train on a CPU over gloo, which later ones do by themselves. To be called before groups are made."""
    import torch
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime import engine

    get_accelerator()._communication_backend_name = "gloo"
    try:
        engine.split_half_float_double_sparse([torch.zeros(1)])
    except AssertionError:  # the types that it knows are spelled "torch.cpu.FloatTensor", and no tensor is called so
        engine.split_half_float_double_sparse = _by_type


def site(folder: Path) -> str:
    """Write a ``sitecustomize.py`` that fills the names in, for builds of such a release; returns the PYTHONPATH for it."""
    (folder / "sitecustomize.py").write_text(f"from {__name__} import stand_in\nstand_in()\n", encoding="utf-8")
    return os.pathsep.join((str(folder), str(ROOT)))


def _by_type(tensors: Any) -> list[tuple[str, list[Any]]]:
    found: dict[str, list[Any]] = {}
    for one in tensors:
        found.setdefault(one.type(), []).append(one)
    return list(found.items())


def _fill(module: types.ModuleType, **names: object) -> None:
    for name, value in names.items():
        if not hasattr(module, name):
            setattr(module, name, value)


def _knows_pydantic_2() -> bool:
    """From ``deepspeed/pydantic_v1.py`` on, which takes the old names from wherever they are."""
    return any(Path(entry, "deepspeed/pydantic_v1.py").is_file() for entry in (*sys.path, os.getcwd()))
