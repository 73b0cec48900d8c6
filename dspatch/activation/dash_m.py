"""``python -m dspatch``: says a wrong variable in one sentence, as the command ``dspatch`` does.

Python imports the package before it runs ``__main__``, so this is the only place where that can be done.
"""

from __future__ import annotations

import sys

from dspatch.settings import read


def prepare() -> None:
    """Do what the command does before the package is imported; leave with exit code 2 when a variable is wrong.

    Nothing happens in other programs, such as ``python -m PACKAGE`` of a package that imports dspatch.
    """
    # Not while a startup file imports the package: Python cannot end there, and the package is imported again.
    if "runpy" not in sys.modules or not _is_ours():
        return
    try:
        from _dspatch_startup import prepare as set_aside
    except ImportError:  # only the package's folder is on the path
        pass
    else:
        set_aside(sys.argv[1:])
    try:
        read()
    except ValueError as error:
        print(f"dspatch: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _is_ours() -> bool:
    """Whether the interpreter was told to run this package: ``-m dspatch``, ``-mdspatch``, ``-Im dspatch``."""
    # What stands in front of the program's own arguments.
    last = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1][-1]
    name = last.partition("m")[2] if last.startswith("-") else last
    return name in ("dspatch", "dspatch.__main__")
