"""Putting a wrapper onto a site, finding it again, and taking it off so that the very same objects are back.

Imports wrapt, so this module is only imported once deepspeed is.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import wrapt

from dspatch.patching.aliases import replace_everywhere
from dspatch.patching.site import Target, find

#: wrapt's protocol: (wrapped, instance, args, kwargs) -> what the caller gets.
WrapperFunction = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]

#: What calls on through ``__wrapped__``; wrapt 2 put a base class under its proxies.
_PROXY: Any = getattr(wrapt, "BaseObjectProxy", wrapt.ObjectProxy)

#: How deep a chain of wrappers is followed; a longer one is taken for a loop.
_DEEPEST = 64


class Switch:
    """Whether a wrapper does anything. Asked at each call of the site, so it also reaches references taken earlier."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True

    def __call__(self) -> bool:
        return self.on


class _Picklable:
    """Pickles and copies as the plain function or method would: nothing of dspatch gets into a pickle."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        wrapped: Any = self.__wrapped__  # type: ignore[attr-defined]
        if inspect.ismethod(wrapped):
            return getattr, (wrapped.__self__, wrapped.__name__)
        from pkgutil import resolve_name

        return resolve_name, (f"{wrapped.__module__}:{wrapped.__qualname__}",)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        from copy import deepcopy

        wrapped: Any = self.__wrapped__  # type: ignore[attr-defined]
        if inspect.ismethod(wrapped):
            return getattr(deepcopy(wrapped.__self__, memo), wrapped.__name__)
        return self

    def __copy__(self) -> Any:
        return self


class BoundPatchWrapper(_Picklable, wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]
    """What attribute access gives: the wrapper around the bound method, or around the function on class access."""


class PatchWrapper(_Picklable, wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """Our wrapper on a site. It knows its patch, so that status, undo and a second activation find it by looking."""

    __bound_function_wrapper__ = BoundPatchWrapper

    def __init__(self, target: Target, wrapper: WrapperFunction, patch_id: str) -> None:
        switch = Switch()
        super().__init__(target.attribute, wrapper, enabled=switch)
        self._self_patch_id = patch_id
        self._self_switch = switch
        self._self_inherited = target.inherited


@dataclass
class Installed:
    """A wrapper that was put on, with all that is needed to take it off.

    Attributes:
        wrapper: the wrapper object; its ``__wrapped__`` is the attribute that stood there before.
        holder: the class or module that it was put on.
        name: the attribute's name there.
        aliases: other names of the same function in other modules, replaced too: (module, name).
    """

    wrapper: PatchWrapper
    holder: type | types.ModuleType
    name: str
    aliases: list[tuple[types.ModuleType, str]] = field(default_factory=list)


def install(target: Target, wrapper: WrapperFunction, patch_id: str) -> Installed:
    """Put ``wrapper`` onto ``target``, or switch on again the one of the same patch that is already in the chain."""
    there = find_wrapper(target.attribute, patch_id)
    if there is not None:
        there._self_switch.on = True
        return Installed(there, target.holder, target.name)
    ours = PatchWrapper(target, wrapper, patch_id)
    setattr(target.holder, target.name, ours)
    defined_here = getattr(target.attribute, "__module__", None) == target.holder.__name__
    # A name that is merely imported into the module is one use of the function; the others are not ours to change.
    aliases = replace_everywhere(target.attribute, ours) if _is_module(target.holder) and defined_here else []
    return Installed(ours, target.holder, target.name, aliases)


def remove(installed: Installed) -> str:
    """Take the wrapper off; also from under someone else's.

    Returns:
        Empty if every object is what it was. Else what had to stay: a wrapper that only another tool's closure still
        calls cannot be taken out of it, it is switched off and passes calls on.
    """
    ours = installed.wrapper
    ours._self_switch.on = False
    places = [(installed.holder, installed.name), *installed.aliases]
    left = [f"{holder.__name__}.{name}" for holder, name in places if not _take_out(holder, name, ours)]
    if _is_module(installed.holder):
        replace_everywhere(ours, ours.__wrapped__)  # modules that imported the name after it was patched
    return f"switched off, but still held by another tool's wrapper on {', '.join(left)}" if left else ""


def _is_module(holder: object) -> bool:
    return isinstance(holder, types.ModuleType)


def _take_out(holder: Any, name: str, ours: PatchWrapper) -> bool:
    current = vars(holder).get(name)
    if current is ours:
        if ours._self_inherited:
            delattr(holder, name)  # putting the function back would leave a copy that hides the base class's
        else:
            setattr(holder, name, ours.__wrapped__)
        return True
    chain = list(chain_of(current))
    position = next((index for index, link in enumerate(chain) if link is ours), None)
    if position is None:
        return True  # someone replaced the whole chain: nothing of ours is left
    above = chain[position - 1]
    # wrapt's own `unwrap_object` (new in 2.5) does the same; older releases have none. Only a proxy calls through
    # `__wrapped__`; on a functools.wraps closure that attribute is a note, and changing it would change nothing.
    if isinstance(above, _PROXY) and above.__wrapped__ is ours:
        above.__wrapped__ = ours.__wrapped__
        return True
    return False


def find_wrapper(attribute: Any, patch_id: str) -> PatchWrapper | None:
    """The wrapper of this patch anywhere in the chain that hangs on an attribute, None if it is not there."""
    return next(
        (link for link in chain_of(attribute) if type(link) is PatchWrapper and link._self_patch_id == patch_id), None
    )


def is_live(module: types.ModuleType, site: str, patch_id: str) -> bool:
    """Whether a call of the site runs this patch now: looks at the live attribute, not at a note of ours."""
    target = find(module, site)
    there = find_wrapper(target.attribute, patch_id) if target is not None else None
    return there is not None and bool(there._self_switch.on)


def foreign_wrappers(attribute: Any) -> tuple[str, ...]:
    """Names of the types of other tools' wrappers in the chain, outermost first."""
    links = list(chain_of(attribute))[:-1]
    return tuple(f"{type(link).__module__}.{type(link).__name__}" for link in links if type(link) is not PatchWrapper)


def chain_of(attribute: Any) -> Iterator[Any]:
    """Walk from the outermost wrapper to the plain function, through descriptors, proxies and plain closures."""
    current = attribute
    for _ in range(_DEEPEST):
        if current is None:
            return
        if type(current) is BoundPatchWrapper:
            # Another tool read the attribute from the class and holds what that gave it.
            current = current._self_parent
            continue
        yield current
        current = _next(current)


def _next(link: Any) -> Any:
    if isinstance(link, _PROXY):
        return link.__wrapped__
    if isinstance(link, (staticmethod, classmethod, types.MethodType)):
        return link.__func__
    if not isinstance(link, types.FunctionType):
        return getattr(link, "__wrapped__", None)
    # functools.wraps notes what it wraps; a bare closure has it only in a cell. Ours in a cell counts either way.
    for cell in link.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        if type(content) in (PatchWrapper, BoundPatchWrapper):
            return content
    return getattr(link, "__wrapped__", None)
