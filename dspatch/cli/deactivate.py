"""``dspatch deactivate``: take away what ``dspatch activate`` wrote."""

from __future__ import annotations

import argparse

from dspatch.activation import sites


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``deactivate``."""
    parser = subparsers.add_parser(
        "deactivate",
        help="remove the startup files that `dspatch activate` wrote",
        description="Removes what `dspatch activate` wrote for the Python that runs this. Files of an installed wheel "
        "stay: they do nothing unless DSPATCH is on, and `pip uninstall dspatch` takes them away.",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be removed")


def run(args: argparse.Namespace) -> int:
    """Remove, and say what."""
    wanted = (*sites.STARTUP_FILES, sites.SITECUSTOMIZE)
    there = [path for folder in sites.folders() for path in (folder / name for name in wanted) if path.is_file()]
    removed = 0
    for path in there:
        if not sites.is_ours(path):
            continue
        if sites.is_pips(path):
            print(f"of the wheel   {path}  (stays; `pip uninstall dspatch` removes it, DSPATCH=0 switches it off)")
            continue
        if not args.dry_run:
            for file in (path, *sites.compiled(path)):
                file.unlink()
        print(f"{'would remove' if args.dry_run else 'removed':<14} {path}")
        removed += 1
    if not removed:
        print("nothing to remove")
    return 0
