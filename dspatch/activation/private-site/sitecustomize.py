# Starts dspatch, then runs the sitecustomize that this file hides, as if it were not there.
# written for dspatch (the line by which `dspatch deactivate` knows its own)
import os
import sys

# `dspatch run` puts this folder on PYTHONPATH, which other interpreters inherit: only the one that it was meant for
# starts dspatch. In the copy that `dspatch activate --sitecustomize` writes into one site-packages this is False.
CHECK_INTERPRETER = True


def _start() -> None:
    meant_for = sys.prefix + os.pathsep + f"{sys.version_info[0]}.{sys.version_info[1]}"
    if CHECK_INTERPRETER and os.environ.get("_DSPATCH_RUN_FOR") != meant_for:
        return
    try:
        import _dspatch_startup
    except ImportError:  # left over after dspatch was uninstalled
        return
    _dspatch_startup.main()


def _run_hidden() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.realpath(os.path.dirname(__file__))
    folders = [os.path.realpath(folder or os.curdir) for folder in sys.path]
    # Only what comes after us: what comes before us has run already, and may be running us.
    behind = sys.path[folders.index(here) + 1 :] if here in folders else []
    spec = PathFinder.find_spec("sitecustomize", [folder for folder in behind if os.path.realpath(folder) != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_start()
_run_hidden()
