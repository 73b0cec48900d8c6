"""``dspatch diff``: what two tags are to each other, component by component and parameter by parameter."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # argparse keeps this class to itself; type checkers know it as generic.
    _SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

#: The words of ``dspatch.diff.compare``, without importing it for the help.
_COMPONENTS = ("weights", "frozen", "buffers", "experts", "masters", "moments", "optimizer_step", "param_groups",
               "loss_scaler", "lr_scheduler", "counters", "data_sampler", "random_ltd", "client_state")  # fmt: skip


def add_parser(subparsers: _SubParsers) -> None:
    """Add ``diff`` to the commands of ``dspatch``."""
    parser = subparsers.add_parser(
        "diff",
        help="compare two tags bit for bit, across ZeRO stages, numbers of ranks and universal folders",
        description="Say what tag B is to tag A: the same, a faithful conversion, what A became, or something else, and "
        "which parameters differ. Reads files only: no GPU, no DeepSpeed, no pickle is run.",
        epilog="exit codes: 0 equal, 1 differs, 2 wrong usage, 3 could not look",
    )
    parser.add_argument("a", metavar="A", help="a tag folder (DIR/TAG), or a checkpoint folder")
    parser.add_argument("b", metavar="B", nargs="?", help="the other one (default: the folder of A, with --tag-b)")
    parser.add_argument("--tag-a", metavar="T", help="tag in A (default: the one in `latest`, else the newest)")
    parser.add_argument("--tag-b", metavar="T", help="tag in B")
    parser.add_argument("--only", metavar="COMPONENT", action="append", choices=_COMPONENTS, default=[],
                        help="compare this component; may be given several times")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="list every parameter that differs")
    parser.add_argument("--json", action="store_true", help="for programs; the schema is in the README")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 if both are equal, 1 if they differ, 3 if that cannot be told.
    """
    if args.b is None and args.tag_b is None:
        args.parser.error("give two folders, or one with --tag-b")
    from dspatch.cli.inspect import Bar, show
    from dspatch.diff.compare import compare
    from dspatch.diff.fragments import read_state

    a = read_state(args.a, args.tag_a)
    b = read_state(args.b if args.b is not None else a.survey.folder, args.tag_b)
    with Bar("comparing", "bytes") as progress:
        found = compare(a, b, args.only, progress)
    if args.json:
        from dspatch import __version__
        from dspatch.diff.report import as_json

        print(json.dumps(as_json(found, __version__), indent=2))
    else:
        from dspatch.diff.text import lines

        show(lines(found, args.all))
    return found.relation.exit_code
