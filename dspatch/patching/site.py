"""A site: one DeepSpeed function, named ``module:Qual.name``, and the place in a loaded module where it hangs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Target:
    """A site found in a loaded module.

    Attributes:
        site: ``module:Qual.name``.
        holder: the class or module that the attribute is looked up on.
        name: the attribute's name.
        attribute: what stands there, without binding: a function, ``staticmethod``, ``classmethod``, a wrapper.
        inherited: whether it comes from a base class, so that putting something on ``holder`` makes a new entry.
    """

    site: str
    holder: type | ModuleType
    name: str
    attribute: Any
    inherited: bool

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameters that can be passed by name, empty where the signature cannot be read."""
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        attribute = self.attribute
        try:
            signature = inspect.signature(getattr(attribute, "__func__", attribute))
        except (TypeError, ValueError):
            return ()
        return tuple(name for name, parameter in signature.parameters.items() if parameter.kind in named)

    @property
    def is_function(self) -> bool:
        """Whether a function wrapper can stand here; a property, a class or plain data cannot be wrapped as one."""
        attribute = self.attribute
        if isinstance(attribute, (staticmethod, classmethod)):
            return True
        return callable(attribute) and not isinstance(attribute, (type, property))


def find(module: ModuleType, site: str) -> Target | None:
    """Look ``site`` up in its loaded module without calling any descriptor; None if it is not there."""
    *parents, name = site.partition(":")[2].split(".")
    holder: Any = module
    for parent in parents:
        holder = inspect.getattr_static(holder, parent, None)
        if not isinstance(holder, type):
            return None
    if name in vars(holder):
        return Target(site, holder, name, vars(holder)[name], inherited=False)
    for base in holder.__mro__[1:] if isinstance(holder, type) else ():
        if name in vars(base):
            return Target(site, holder, name, vars(base)[name], inherited=True)
    return None
