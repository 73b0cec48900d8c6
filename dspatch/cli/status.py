"""``dspatch status``: what would apply to the DeepSpeed of this environment, found out in a process of its own."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

_FINE, _PROBLEM, _COULD_NOT = 0, 1, 3

#: Importing deepspeed prints to both streams, so the answer stands on a line of its own.
_ANSWER = "dspatch-status:"
_PROGRAM = f"""
import dataclasses, json
import dspatch
import deepspeed
rows = [dataclasses.asdict(row) for row in dspatch.status()]
print({_ANSWER!r} + json.dumps({{"rows": rows, "where": deepspeed.__file__, "switch": dspatch.settings().switch}}))
"""
_SECONDS = 300


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``status``."""
    parser = subparsers.add_parser(
        "status",
        help="show what dspatch does to the DeepSpeed installed here",
        description="Imports dspatch and deepspeed in a process of its own and shows one row per patch. Exit code 1: a "
        "patch failed or does not fit; 3: deepspeed cannot be imported.",
    )
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    """Ask the process and print its ledger."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"dspatch status: importing deepspeed takes longer than {_SECONDS} s", file=sys.stderr)
        return _COULD_NOT
    answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    if not answers:
        print(done.stderr.strip() or done.stdout.strip(), file=sys.stderr)
        print("dspatch status: deepspeed could not be imported with dspatch here (see above)", file=sys.stderr)
        return _COULD_NOT
    found = json.loads(answers[-1].removeprefix(_ANSWER))
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        _show(found)
    return _PROBLEM if any(_is_bad(row) for row in found["rows"]) else _FINE


def _is_bad(row: dict[str, str]) -> bool:
    return row["state"] == "failed" or row["tier"] == "incompatible"


def _show(found: dict[str, object]) -> None:
    rows = found["rows"]
    assert isinstance(rows, list)
    version = next((row["version"] for row in rows if row["version"]), "version unknown")
    print(f"DeepSpeed {version} in {found['where']}")
    if found["switch"] == "off":
        print("DSPATCH is set to an off word: nothing is patched")
    width = max((len(row["patch"]) for row in rows), default=0)
    for row in rows:
        reason = row["reason"].strip().splitlines()[-1] if row["reason"].strip() else ""
        print(f"{row['patch']:<{width}}  {row['state']:<13}  {row['site']}{f'  ({reason})' if reason else ''}")
