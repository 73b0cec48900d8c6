"""Being told that a module was executed: the first time, each time again, and when it was already under way.

wrapt's post-import hooks cover the first import. They are popped once used, so a module that is reloaded, or taken out
of ``sys.modules`` and imported again, would come back unpatched: ``_AgainFinder`` covers those. A module that is half
imported when we come (another thread, or a call from inside its own import) has passed both; ``_call_when_done``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import wrapt

Listener = Callable[[ModuleType], None]


class ImportWatch:
    """Calls ``listener(module)`` after every execution of each watched module.

    There is no way back, as wrapt's hooks have none: the listener has to know whether it still wants to act. It must
    not raise, because that would break the import.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._watched: set[str] = set()
        #: Names for which wrapt holds an unused hook; the others are ours to notice.
        self._hooked: set[str] = set()
        self._registering = threading.local()
        self._finder = _AgainFinder(lambda name: name in self._watched and name not in self._hooked, listener)

    def watch(self, name: str) -> None:
        """Watch a module from now on; if it is loaded already, or soon will be, the listener hears of that too."""
        if self._finder not in sys.meta_path:
            sys.meta_path.insert(0, self._finder)
        self._watched.add(name)
        module = sys.modules.get(name)
        if module is not None:
            self._already_there(module)
        elif name not in self._hooked:
            self._hooked.add(name)
            self._registering.name = name
            try:
                wrapt.register_post_import_hook(self._first_import, name)
            finally:
                self._registering.name = None

    def _first_import(self, module: ModuleType) -> None:
        self._hooked.discard(module.__name__)
        if getattr(self._registering, "name", None) == module.__name__:
            # Another thread began this import just now: wrapt calls at once, which is too early.
            self._already_there(module)
        else:
            self._listener(module)

    def _already_there(self, module: ModuleType) -> None:
        if not _call_when_done(module, self._listener):
            self._listener(module)


class _AgainFinder(MetaPathFinder):
    """Finds modules as the other finders do, and has the loader tell once it has executed one that we care about."""

    def __init__(self, cares: Callable[[str], bool], listener: Listener) -> None:
        self._cares = cares
        self._listener = listener

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._cares(fullname):
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(fullname, path, target) if finder is not self and find_spec is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _TellingLoader(spec.loader, self._listener)
                return spec  # type: ignore[no-any-return]
        return None


class _TellingLoader(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A loader that calls the listener after the module's code has run. In all else it is the loader it wraps."""

    def __init__(self, loader: object, listener: Listener) -> None:
        super().__init__(loader)
        self._self_listener = listener

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.__wrapped__  # nobody needs to see us afterwards
        module.__loader__ = self.__wrapped__
        self.__wrapped__.exec_module(module)
        self._self_listener(module)


class _SpecUnderWay(ModuleSpec):
    """The spec of a module that is being executed; the import system marks the end on it, after which it is plain."""

    _listener: Listener
    _module: ModuleType

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            listener, module = self.__dict__.pop("_listener"), self.__dict__.pop("_module")
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            if sys.modules.get(module.__name__) is module:  # else its import has failed
                listener(module)


def _call_when_done(module: ModuleType, listener: Listener) -> bool:
    """Call ``listener`` when the import of ``module`` is done; False if it is done already.

    ``_initializing`` is how the import system itself tells other threads that a module is not ready, in every Python
    since 3.3. A module without it counts as ready.
    """
    spec = module.__spec__
    if spec is None or type(spec) not in (ModuleSpec, _SpecUnderWay) or not getattr(spec, "_initializing", False):
        return False
    spec.__dict__["_listener"], spec.__dict__["_module"] = listener, module
    spec.__class__ = _SpecUnderWay
    # It may have ended between the question and here; the listener is told once more often rather than never.
    return bool(getattr(spec, "_initializing", False))
