"""``dspatch inspect``: is a checkpoint whole, what is in it, which tag is the newest whole one, who can resume it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dspatch.offline.inspection import Inspection, Wish
    from dspatch.offline.text import Line

    # argparse keeps this class to itself; type checkers know it as generic.
    _SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

FINE, PROBLEM, WRONG_USE, COULD_NOT_LOOK = range(4)
_INTERRUPTED = 130

_EPILOG = """\
One check on many nodes of a scheduler that you already have (the folder is shared):
  srun --ntasks=8 bash -c 'dspatch inspect DIR --deep --part $((SLURM_PROCID+1))/$SLURM_NTASKS > part-$SLURM_PROCID.json'
  torchrun --nnodes=8 --nproc-per-node=1 --no-python bash -c \\
    'dspatch inspect DIR --deep --part $((RANK+1))/$WORLD_SIZE > part-$RANK.json'
and then, once, anywhere:
  dspatch inspect --merge part-*.json

exit codes: 0 fine, 1 a problem was found, 2 wrong usage, 3 could not look"""


def add_parser(subparsers: _SubParsers) -> None:
    """Add ``inspect`` to the commands of ``dspatch``."""
    parser = subparsers.add_parser(
        "inspect",
        help="judge a checkpoint without a GPU, without DeepSpeed, without running its pickles",
        description="Say of a checkpoint folder what is in it and whether it is whole. Reads indexes and object trees only, "
        "a few milliseconds for each file; --deep reads every byte.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", metavar="DIR", nargs="?", help="the checkpoint folder, a tag folder, or one level off"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tag", metavar="T", help="this tag (default: the one in `latest`, else the newest)")
    which.add_argument("--all", action="store_true", help="every tag")
    which.add_argument("--newest-whole", action="store_true", help="print the newest whole tag and nothing else")
    parser.add_argument(
        "--deep", action="store_true", help="read every byte: checksums, and NaN, infinite or zero values"
    )
    parser.add_argument("--for-ranks", metavar="N", type=int, help="can a job of N ranks resume it (with --for-stage)")
    parser.add_argument("--for-stage", metavar="S", type=int, choices=range(4), help="ZeRO stage of that job")
    parser.add_argument("--json", action="store_true", help="for programs; the schema is in the README")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page that needs no network")
    parser.add_argument("--part", metavar="I/N", help="read only part I of N, and write it to stdout for --merge")
    parser.add_argument("--merge", metavar="FILE", nargs="+", help="judge what the parts have read")
    parser.add_argument("--report", metavar="FILE", type=Path, help="show a load report that DSPATCH_REPORT wrote instead: as "
                        "text, with --html as a page of the same form")  # fmt: skip
    parser.add_argument("--threads", metavar="N", type=int, help="threads of --deep (default: one for each core)")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 if all is well, 1 if a problem was found, 3 if the folder cannot be looked at; 130 if it was interrupted.
    """
    from dspatch.offline import inspection

    part = _usage(args)
    if args.report is not None:
        return _show_report(args)
    wish = inspection.Wish(args.folder or "", args.tag, args.all, args.deep, args.for_ranks, args.for_stage,
                           args.threads)  # fmt: skip
    if part is not None:
        return _write_part(wish, *part)
    if args.merge:
        found = inspection.merge(args.merge, wish)
    else:
        with Bar("reading", "files") as reading, Bar("checking", "bytes") as checking:
            found = inspection.inspect(wish, reading, checking)
    if args.html is not None:
        from dspatch import __version__
        from dspatch.offline.page import page

        _write_page(page(found, __version__), args.html)
    stopped = found.deep is not None and found.deep.stopped
    if args.newest_whole:
        return _INTERRUPTED if stopped and found.newest_whole is None else _newest(found)
    if args.json:
        from dspatch import __version__
        from dspatch.offline.report import as_json

        print(json.dumps(as_json(found, __version__), indent=2))
    else:
        from dspatch.offline.text import lines

        show(lines(found, args.all))
    if stopped:
        return _INTERRUPTED
    return PROBLEM if found.problem else FINE


def _usage(args: argparse.Namespace) -> tuple[int, int] | None:
    """Check what argparse cannot; the part that is asked for."""
    wrong = args.parser.error
    if sum(map(bool, (args.folder, args.merge, args.report))) != 1:
        wrong("give one folder, or files after --merge, or one after --report")
    if (args.for_ranks is None) != (args.for_stage is None):
        wrong("--for-ranks and --for-stage belong together")
    if args.for_ranks is not None and args.for_ranks < 1:
        wrong("--for-ranks is the number of ranks, at least 1")
    if args.threads is not None and args.threads < 1:
        wrong("--threads is at least 1")
    if args.merge and (args.deep or args.tag or args.all or args.part):
        wrong("--merge judges what was read: --deep, --tag, --all and --part belong to the parts")
    if args.report and (args.deep or args.tag or args.all or args.part or args.newest_whole or args.for_ranks is not None):
        wrong("--report shows what a load has found: only --html and --json go with it")
    if args.part is None:
        return None
    if args.html is not None or args.newest_whole or args.for_ranks is not None:
        wrong("--part only reads: give --html, --newest-whole and --for-ranks to --merge")
    first, _, count = args.part.partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count) <= 1_000_000):
        wrong(f"--part is I/N with 1 <= I <= N, not {args.part!r}")
    return int(first), int(count)


def _write_part(wish: Wish, number: int, count: int) -> int:
    from dspatch.offline import inspection

    with Bar("reading", "files") as reading, Bar("checking", "bytes") as checking:
        made = inspection.inspect_part(wish, number, count, reading, checking)
    json.dump(made.as_json(), sys.stdout)
    print()
    return _INTERRUPTED if made.covered is not None and made.covered.stopped else FINE


def _show_report(args: argparse.Namespace) -> int:
    from dspatch.verdict.report import LoadReport

    try:
        report = LoadReport.from_dict(json.loads(args.report.read_text(encoding="utf-8")))
    except ValueError as error:
        raise OSError(f"{args.report} is no load report that DSPATCH_REPORT wrote ({error})") from error
    if args.html is not None:
        from dspatch import __version__
        from dspatch.offline.load_page import load_page

        _write_page(load_page(report.to_dict(), __version__), args.html)
    print(report.to_json() if args.json else report)
    return FINE if report.ok else PROBLEM


def _write_page(text: str, path: Path) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OSError(f"the page cannot be written to {path} ({error.strerror})") from error


def _newest(found: Inspection) -> int:
    if found.newest_whole is None:
        print(f"dspatch: no tag in {found.survey.folder} is whole", file=sys.stderr)
        return PROBLEM
    print(found.newest_whole)
    return FINE


def show(lines: Iterable[Line]) -> None:
    """Print lines, coloured with rich where that is installed and somebody is looking."""
    console = _console()
    for text, style in lines:
        if console is None:
            # Names on disks need not be text in any encoding.
            print(
                text.encode(sys.stdout.encoding or "utf-8", "backslashreplace").decode(sys.stdout.encoding or "utf-8")
            )
        else:
            console(text, style)


_COLOURS = {"good": "green", "bad": "bold red", "warn": "yellow", "dim": "dim", "head": "bold", "": ""}


def _console() -> Callable[[str, str], object] | None:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    return lambda text, style: console.print(text, style=_COLOURS[style] or None)


class Bar:
    """A line of progress on a terminal's stderr; nothing where nobody is looking, and nothing for work that is short."""

    _AFTER, _EVERY, _WIDTH = 1.0, 0.2, 30

    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit
        self._on = sys.stderr.isatty()
        self._began = self._told = time.monotonic()
        self._shown = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._on or now - self._began < self._AFTER or now - self._told < self._EVERY:
            return
        self._told, self._shown = now, True
        share = done / total if total else 1.0
        filled = int(share * self._WIDTH)
        left = (now - self._began) * (1 - share) / share if share > 0 else 0.0
        bar = "#" * filled + "-" * (self._WIDTH - filled)
        amount = f"{done / 2**30:.2f} of {total / 2**30:.2f} GiB" if self._unit == "bytes" else f"{done:,} of {total:,}"
        print(f"\r{self._what} [{bar}] {share:4.0%} {amount}, {left:.0f} s left (Ctrl-C stops it)\x1b[K", end="",
              file=sys.stderr, flush=True)  # fmt: skip
