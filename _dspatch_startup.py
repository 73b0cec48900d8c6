"""Starts dspatch when a Python process starts and ``DSPATCH`` is on. Called by ``dspatch.pth`` (before Python 3.15) and
``dspatch.start`` (from 3.15 on), by autowrapt, by the sitecustomize of ``dspatch run``; and the command ``dspatch``.

It lies outside the package on purpose: every Python process that has the startup file installed may import it, and a
module inside ``dspatch`` would run ``dspatch/__init__.py`` first. It imports ``os`` only, never raises, says nothing
before ``deepspeed`` is imported, and does no harm when dspatch itself is gone.
"""

import os

#: The values of ``DSPATCH`` with which a startup file does nothing; the empty one counts as unset.
OFF_WORDS = ("", "0", "off", "false", "no")

_started: list[bool] = []

#: The ``DSPATCH*`` variables that ``prepare`` took out of the environment, for ``dspatch doctor`` to look at.
set_aside: dict[str, str] | None = None


def main() -> None:
    """Import dspatch, which arms it, if ``DSPATCH`` asks for it. Safe to call twice (a venv runs ``.pth`` lines twice).

    A wrong value counts as asking for it: the error that lists the right ones is raised at the first deepspeed import.
    """
    if _word() not in OFF_WORDS:
        _start()


def from_autowrapt(_module: object) -> None:
    """The same for ``AUTOWRAPT_BOOTSTRAP=dspatch``, which asks for it by itself: only ``DSPATCH=0`` says no.

    The entry point stands under the name of a module that is always loaded (``sys``): autowrapt then calls at once.
    Under the name ``deepspeed`` it would call after deepspeed has been executed.
    """
    if not _word() or _word() not in OFF_WORDS:
        _start()


def command() -> int:
    """``dspatch`` on the command line. Here, since a wrong variable stops the import of the package: no traceback then."""
    import sys

    prepare(sys.argv[1:])
    try:
        from dspatch.cli.main import main as run
    except ValueError as error:  # SettingsError, whose class cannot be imported now
        print(f"dspatch: {error}", file=sys.stderr)
        return 2
    return run()


def prepare(arguments: list[str]) -> None:
    """Before the package is imported for a command: ``dspatch doctor`` has to come up with wrong variables, too, unarmed, and
    say what is wrong, so they are set aside for it.
    """
    if arguments[:1] == ["doctor"]:
        global set_aside  # noqa: PLW0603
        set_aside = {name: value for name, value in os.environ.items() if name.startswith("DSPATCH")}
        for name in set_aside:
            del os.environ[name]
        os.environ["DSPATCH"] = "0"


def _word() -> str:
    return os.environ.get("DSPATCH", "").strip().lower()


def _start() -> None:
    if _started:
        return
    _started.append(True)
    try:
        import dspatch  # noqa: F401
    except Exception as error:
        import sys

        sys.meta_path.insert(0, _Complaint(error))  # type: ignore[arg-type]


class _Complaint:
    """Finder and loader of ``deepspeed`` that says why dspatch did not start, to those who import deepspeed only.

    If dspatch is gone (a left-over startup file), that is one line on stderr. Anything else is raised, each time, since
    somebody asked for dspatch and would not get it. Looking for deepspeed without importing it is no reason to raise.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.searching: set[int] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """The real spec; loading it raises."""
        import sys
        from _thread import get_ident

        thread = get_ident()
        if name != "deepspeed" or thread in self.searching:  # another finder that asks the others, as we do
            return None
        self.searching.add(thread)
        spec = None
        try:
            # Nothing is imported here: Python holds the lock of all imports around a finder.
            for finder in list(sys.meta_path):
                find_spec = getattr(finder, "find_spec", None)
                if spec is None and find_spec is not None and find_spec != self.find_spec:
                    spec = find_spec(name, path, target)
        finally:
            self.searching.discard(thread)
        if spec is None or "dspatch" in sys.modules:  # imported since, with the variables corrected
            return spec
        if isinstance(self.error, ModuleNotFoundError) and self.error.name == "dspatch":
            try:
                sys.meta_path.remove(self)  # type: ignore[arg-type]
            except ValueError:  # another thread did, and said it
                return spec
            print("dspatch: DSPATCH is set, but dspatch is not installed here: loads are not checked", file=sys.stderr)
            return spec
        spec.loader = self
        return spec

    def create_module(self, spec: object) -> object:
        """Raise what went wrong."""
        raise self.error

    def exec_module(self, module: object) -> None:
        """Never reached; the import system wants it beside ``create_module``."""
        raise self.error
