"""Waits for ``deepspeed`` to be imported, at no cost: one small finder on ``sys.meta_path``.

wrapt, PyYAML and packaging cost more to import than many scripts take to run, so they wait for the first sight of
deepspeed, when torch is about to be loaded and nobody notices them. Only ``sys`` and built-in modules are imported
here.
"""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from dspatch.settings import Settings

NAME = "deepspeed"


class FirstSight:
    """Finds ``deepspeed`` as the other finders do, and has its loader start the engine just before its code runs.

    Nothing may be imported in ``find_spec``: Python holds the lock of all imports around it, and a thread that is in
    the middle of an import which we need as well would wait for us while we wait for it. So it is the loader that
    imports. That also leaves those alone who only look whether deepspeed is installed, as many libraries do.

    ``sys.meta_path`` is changed by single calls only: other threads put finders there, which must not get lost.
    """

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self._searching: set[int] = set()

    def wait(self, settings: Settings) -> None:
        """Be there for the next import; the engine gets these settings."""
        self.settings = settings
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def leave(self) -> None:
        """Be there no more."""
        while self in sys.meta_path:
            try:
                sys.meta_path.remove(self)
            except ValueError:  # another thread did
                break

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have for deepspeed, with our loader around theirs."""
        thread = get_ident()
        if fullname != NAME or thread in self._searching:  # another finder that asks the others, as we do
            return None
        self._searching.add(thread)
        try:
            for finder in list(sys.meta_path):
                find_spec = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find_spec(NAME, path, target) if find_spec and finder is not self else None
                if spec is not None:
                    if spec.loader is not None:  # else it is a folder without code
                        spec.loader = _FirstLoader(spec.loader, self)  # type: ignore[assignment]
                    return spec
        finally:
            self._searching.discard(thread)
        return None


class _FirstLoader:
    """Starts the engine, then has the loader that it wraps load deepspeed. In all else it is that loader.

    An exception of the engine is raised by the import, and again by each further one: before there is a module, since
    other threads that import it at the same time would take an empty one for the result.
    """

    def __init__(self, loader: Loader, first_sight: FirstSight) -> None:
        self._loader = loader
        self._first_sight = first_sight

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        settings = self._first_sight.settings
        if settings is not None and self._first_sight in sys.meta_path:  # not deactivated since
            _start_engine(settings)
            self._first_sight.leave()
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # nobody needs to see us afterwards
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        wrapt = sys.modules.get("wrapt")
        if wrapt is not None:  # hooks on deepspeed itself came too late for wrapt's own finder
            wrapt.notify_module_loaded(module)


_FIRST_SIGHT = FirstSight()


def arm(settings: Settings) -> None:
    """Have DeepSpeed patched when it is imported; at once if it is already. With ``DSPATCH=0`` only say that, then."""
    if NAME not in sys.modules:
        _FIRST_SIGHT.wait(settings)
    if NAME in sys.modules:  # also if another thread imported it just then
        try:
            _start_engine(settings)
        finally:
            _FIRST_SIGHT.leave()  # not before: that other thread would find nobody waiting, and nothing patched yet


def disarm() -> None:
    """Stop waiting."""
    _FIRST_SIGHT.leave()


def is_waiting() -> bool:
    """Whether deepspeed has not been seen yet."""
    return _FIRST_SIGHT in sys.meta_path


def _start_engine(settings: Settings) -> None:
    from dspatch import log

    log.set_level(settings.log_level)
    if settings.switch == "off":
        log.logger().info("off: DSPATCH is set to an off word, nothing is patched and no load is checked")
        return
    try:
        from dspatch.patching import engine

        engine.arm(settings)
    except Exception as error:
        # The engine keeps its own failures to itself; this is a broken installation (no wrapt, no PyYAML).
        from dspatch.errors import LOWER_TO_WARNING, PatchFailed, explain

        text = explain(
            "dspatch could not start, so no checkpoint load would be checked",
            found=f"{type(error).__name__}: {error}",
            do=("install dspatch with its dependencies: pip install dspatch", "or set DSPATCH=0 to go without it"),
            lower=LOWER_TO_WARNING,
        )
        if settings.mode == "strict":
            raise PatchFailed(text) from error
        log.logger().error("%s", text, exc_info=error)
