"""``dspatch doctor``: what is wrong with dspatch, DeepSpeed and torch in this environment, ready for a bug report."""

from __future__ import annotations

import argparse
import json
import os
import sys

from dspatch.doctor import catalogue, deepspeed, environment, launcher, report, selftest, startup
from dspatch.doctor.checks import run_all
from dspatch.doctor.here import Here

#: In the order in which they are shown: what comes first may be the reason for what comes later.
CHECKS = (*environment.CHECKS, *deepspeed.CHECKS, *startup.CHECKS, *launcher.CHECKS, *catalogue.CHECKS)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="look for what is wrong with this installation, for a bug report",
        description="Looks at dspatch, DeepSpeed and torch without importing them here, changes nothing, and says what is "
        "wrong and what to do. Exit code 1: a check says FAIL or CRASH; 3: the self-test could not be run.",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--verbose", action="store_true", help="with evidence, full paths and names")
    parser.add_argument("--selftest", action="store_true", help=f"also damage a tiny checkpoint on two CPU ranks and load it "
                        f"(up to {selftest.LIMIT:g} s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Look, and print what was found."""
    here = Here.real()
    results = run_all((*CHECKS, *(selftest.CHECKS if args.selftest else ())), here)
    code = report.exit_code(results)
    data = report.as_data(here, results, code, args.verbose)
    if args.json:
        print(json.dumps(data, indent=2))
    else:
        print(report.as_text(data, sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
    return code
