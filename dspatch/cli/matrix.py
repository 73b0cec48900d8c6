"""``dspatch matrix``: which patch is for which DeepSpeed; ``dspatch matrix check``: what a new release changes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch.errors import MatrixError, explain
from dspatch.patching import check, table
from dspatch.patching.matrix import Matrix, load

if TYPE_CHECKING:
    # argparse keeps this class to itself; type checkers know it as generic.
    _SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

FINE, PROBLEM, WRONG_USE, COULD_NOT_LOOK = range(4)

#: Version of the ``--json`` output; it changes only when a field changes its meaning or goes away.
JSON_SCHEMA = 1

#: Where the development set-up unpacks DeepSpeed releases, by version.
_TREES = Path(".cache", "trees")


def add_parser(subparsers: _SubParsers) -> None:
    """Add ``matrix`` to the commands of ``dspatch``."""
    parser = subparsers.add_parser(
        "matrix",
        help="which patch is for which DeepSpeed, and what a new release changes",
        description="Print the compatibility matrix. `dspatch matrix check X` compares it with a DeepSpeed.",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="as a Markdown table")
    form.add_argument("--json", action="store_true", help="as JSON, with every field")
    parser.set_defaults(run=run, action="show")
    actions = parser.add_subparsers(metavar="check")
    checking = actions.add_parser(
        "check",
        help="compare the matrix with one DeepSpeed",
        description="Say for every site whether its body is known. Reads source files; imports and runs nothing.",
    )
    checking.add_argument("where", metavar="VERSION_OR_TREE", help="an installed version, or a folder that holds it")
    checking.add_argument("--json", action="store_true", help="as JSON")
    checking.set_defaults(run=run, action="check")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 if all is known, 1 if something is new, 3 if the matrix or the tree cannot be read.
    """
    try:
        matrix = load()
        return _check(matrix, args) if args.action == "check" else _show(matrix, args)
    except (MatrixError, OSError, SyntaxError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(error, file=sys.stderr)
        return COULD_NOT_LOOK


def _show(matrix: Matrix, args: argparse.Namespace) -> int:
    if args.json:
        data = {"schema": JSON_SCHEMA, "trees": dict(matrix.trees), "rows": [table.as_data(row) for row in matrix.rows]}
        print(json.dumps(data, indent=2))
    else:
        print(table.markdown(matrix) if args.markdown else table.plain(matrix))
    return FINE


def _check(matrix: Matrix, args: argparse.Namespace) -> int:
    tree = check.locate(args.where, [Path(folder) for folder in sys.path], _TREES)
    if tree is None:
        print(_not_found(args.where), file=sys.stderr)
        return COULD_NOT_LOOK
    version, checked = check.examine(matrix, tree)
    if args.json:
        items = [table.check_as_data(item) for item in checked]
        print(json.dumps({"schema": JSON_SCHEMA, "tree": str(tree), "version": version, "sites": items}, indent=2))
    else:
        print(f"DeepSpeed {version or 'source tree, whose version cannot be trusted: bodies decide'}")
        print(table.plain_check(checked))
    return FINE if all(item.state in check.FINE for item in checked) else PROBLEM


def _not_found(where: str) -> str:
    return explain(
        f"there is no DeepSpeed at {where!r}",
        expected="a folder that holds deepspeed/, or the version of the installed DeepSpeed",
        do=f"unpack it first: pip install --no-deps --target FOLDER deepspeed=={where}, then name FOLDER",
    )
