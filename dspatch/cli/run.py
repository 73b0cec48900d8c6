"""``dspatch run -- CMD...``: one command and its children with dspatch on, nothing installed or changed."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys

from dspatch.activation import sites

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``run``."""
    parser = subparsers.add_parser(
        "run",
        help="run one command and its children with dspatch on",
        description="Runs the command with DSPATCH=1, in place of this process: exit code and signals are its own. "
        "Where dspatch has no startup file, a folder with a sitecustomize comes first on PYTHONPATH; it runs the "
        "sitecustomize that it hides. Python started with -I, -E or -S is out of reach.",
        usage="dspatch run [--] CMD [ARG ...]",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="CMD", help="the command and its arguments")


def run(args: argparse.Namespace) -> int:
    """Become the command. Returns only if that fails: 127 there is none, 126 it cannot be run, 2 nothing was named."""
    words: list[str] = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        print("dspatch run: no command; for example: dspatch run -- deepspeed train.py", file=sys.stderr)
        return 2
    if shutil.which(words[0]) is None:
        exists = os.path.exists(words[0])
        print(f"dspatch run: {words[0]}: {'not executable' if exists else 'no such command'}", file=sys.stderr)
        return _NOT_EXECUTABLE if exists else _NOT_FOUND
    variables = environment(dict(os.environ))
    sys.stdout.flush()
    sys.stderr.flush()
    _restore_signals()
    try:
        os.execvpe(words[0], words, variables)
    except OSError as error:  # no `#!` line, another machine's binary
        print(f"dspatch run: {words[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_EXECUTABLE


def _restore_signals() -> None:
    """Python ignores these for itself, and exec would hand that on: `dspatch run -- yes | head` would complain."""
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


def environment(environ: dict[str, str]) -> dict[str, str]:
    """The variables for the command. ``DSPATCH=0`` stays: the kill switch beats everything."""
    from dspatch.settings import OFF_WORDS

    if environ.get("DSPATCH", "").strip().lower() in OFF_WORDS:
        print("dspatch run: DSPATCH is an off word and stays so: the command runs without dspatch", file=sys.stderr)
        return environ
    changed = {**environ, "DSPATCH": "1"}
    if not sites.has_startup_files():
        behind = environ.get("PYTHONPATH", "")
        changed["PYTHONPATH"] = os.pathsep.join(part for part in (str(sites.PRIVATE_SITE), behind) if part)
        changed["_DSPATCH_RUN_FOR"] = sys.prefix + os.pathsep + f"{sys.version_info.major}.{sys.version_info.minor}"
    return changed
