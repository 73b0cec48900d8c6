"""Other names of a module-level function: ``from x import f`` in modules that were imported before the patch."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def replace_everywhere(old: Any, new: Any) -> list[tuple[ModuleType, str]]:
    """Give every loaded module that holds the very object ``old`` under some name the object ``new`` instead.

    References inside objects, closures and containers cannot be found.

    Returns:
        The (module, name) pairs that were replaced.
    """
    replaced = []
    for module in list(sys.modules.values()):
        # vars, not getattr: modules with a lazy __getattr__ must not load anything now.
        names = vars(module) if isinstance(module, ModuleType) else {}
        for name in [name for name, value in list(names.items()) if value is old]:
            setattr(module, name, new)
            replaced.append((module, name))
    return replaced
