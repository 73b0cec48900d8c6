"""``dspatch COMMAND``: finds the command's file, and is the one place for exit codes, Ctrl-C and closed pipes.

Exit codes: 0 fine, 1 a problem was found, 2 wrong usage, 3 could not look.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module, util
from types import ModuleType

from dspatch.errors import DspatchError

#: In the order of ``dspatch --help``. One whose file is not there is not offered.
COMMANDS = ("run", "activate", "deactivate", "status", "doctor", "inspect", "diff", "matrix", "demo")

FINE, PROBLEM, USAGE, COULD_NOT_LOOK = 0, 1, 2, 3
_INTERRUPTED = 130
_PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: without the program's name; those of the process by default.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except KeyboardInterrupt:
        print("dspatch: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # Somebody piped us into `head`. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except (DspatchError, OSError) as error:
        print(f"dspatch: {error}", file=sys.stderr)
        return COULD_NOT_LOOK


def _run(given: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="dspatch",
        description="Makes a lossy DeepSpeed resume loud.",
        epilog="exit codes: 0 fine, 1 a problem was found, 2 wrong usage, 3 could not look",
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    modules = _add_commands(subparsers, given)
    parsed = parser.parse_args(given)
    if parsed.version:
        from dspatch import __version__

        print(f"dspatch {__version__}")
        return FINE
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    code: int = modules[parsed.command].run(parsed)
    sys.stdout.flush()  # here, where a closed pipe is caught
    return code


def _add_commands(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], given: list[str]
) -> dict[str, ModuleType]:
    """Add the command that is asked for, or all for the help. A broken one must not take the others along."""
    asked = next((word for word in given if not word.startswith("-")), None)
    modules = {}
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        if util.find_spec(f"dspatch.cli.{name}") is None:
            continue
        try:
            module = import_module(f"dspatch.cli.{name}")
        except ImportError as error:
            if name == asked:
                raise OSError(f"`dspatch {name}` cannot run here: {error}") from error
            subparsers.add_parser(name, help=f"(cannot run here: {error})", add_help=False)
            continue
        module.add_parser(subparsers)
        modules[name] = module
    return modules
