"""``make demo``: build the trees that ``dspatch demo`` needs, then run it with them."""

from __future__ import annotations

import argparse
import sys

from dspatch.cli import demo
from tests.support.recreated import recreated
from tests.support.trees import Tree, tree


def main(arguments: list[str]) -> int:
    """Run the demo on the development trees; further arguments are those of ``dspatch demo``."""
    parser = argparse.ArgumentParser(prog="make demo")
    demo.add_parser(parser.add_subparsers())
    options = {
        "--recreated": recreated(),
        "--stage0": tree("stage0_loses_moments"),
        "--newest": tree("newest"),
    }
    given = [word for option, found in options.items() for word in (option, _spelled(found))]
    args = parser.parse_args(["demo", *given, *arguments])
    result: int = args.run(args)
    return result


def _spelled(found: Tree) -> str:
    return f"{found.path},{found.extensions}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
