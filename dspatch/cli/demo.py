"""``dspatch demo``: lossy resumes with real DeepSpeed ranks on this machine's CPU, without and with dspatch."""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch.demo.launch import JobFailed, Tree
from dspatch.demo.parts import PARTS, Part, Shown, show

if TYPE_CHECKING:
    # argparse keeps this class to itself; type checkers know it as generic.
    _SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

#: part -> option and variable that give it a DeepSpeed of its own.
_TREES = {
    "a": ("--recreated", "DSPATCH_DEMO_RECREATED"),
    "b": ("--stage0", "DSPATCH_DEMO_STAGE0"),
    "c": ("--newest", "DSPATCH_DEMO_NEWEST"),
}

_PICTURE = "resume.png"


def add_parser(subparsers: _SubParsers) -> None:
    """Add ``demo`` to the commands of ``dspatch``."""
    parser = subparsers.add_parser(
        "demo",
        help="show lossy resumes without and with dspatch",
        description="Train, save and resume on CPU with real ranks, without and with dspatch. Takes the DeepSpeed of this"
        " environment, or for a part the folder that an option or its variable names (PATH or PATH,EXTENSIONS).",
    )
    for part in PARTS:
        option, variable = _TREES[part.key]
        parser.add_argument(option, metavar="TREE", default=os.environ.get(variable, ""), dest=f"tree_{part.key}",
                            help=f"DeepSpeed for part ({part.key}), {part.title} [{variable}]")  # fmt: skip
    parser.add_argument("--only", metavar="PARTS", default="abc", help="parts to run, for example `bc`")
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=Path("demo-out"), help="where the picture goes")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 if all that was shown came out as said, 1 if a resume under dspatch was neither right nor stopped, 3 if
        nothing could be shown.
    """
    started, shown = time.monotonic(), []
    for part in PARTS:
        if part.key in args.only:
            shown += _one(part, Tree.parse(getattr(args, f"tree_{part.key}")), started)
    if not shown:
        return 3
    _table(shown)
    _picture(shown, args.out)
    print(f"done in {time.monotonic() - started:.0f} s")
    return 1 if any(_verdict(one, label) == "NOT CAUGHT" for one in shown for label in one.runs) else 0


def _one(part: Part, tree: Tree, started: float) -> list[Shown]:
    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", file=sys.stderr, flush=True)

    if not tree.path and part.key == "a":
        say("(a) not shown: no release has this fault; `make demo` of the source tree recreates it")
        return []
    if not tree.path and find_spec("deepspeed") is None:
        say(f"({part.key}) not shown: this environment has no deepspeed")
        return []
    try:
        shown = show(part, tree, say)
    except JobFailed as error:
        say(f"({part.key}) not shown: the ranks gave no result:\n{error}")
        return []
    if not shown.lossy:
        say(f"({part.key}) this DeepSpeed does not have the fault: its resume without dspatch is right")
    for label, outcome in shown.runs.items():
        for text in filter(None, outcome.errors[:1]):
            say(f"({part.key}) with dspatch ({label}) every rank raised:\n{_indented(text)}")
        for text in outcome.said:
            say(f"({part.key}) with dspatch ({label}) said: {text}")
    return [shown]


def _table(parts: list[Shown]) -> None:
    print()
    print(f"{'':4}{'run':34}{'loss at the resume':>20}{'one step later':>16}{'at the end':>12}  verdict")
    for shown in parts:
        at = len(shown.reference) - len(shown.without.losses)
        print(f"({shown.part.key}) {shown.part.title}; {shown.part.origin}")
        rows = {"never interrupted": shown.reference[at:], "without dspatch": shown.without.losses}
        rows |= {f"with dspatch ({label})": outcome.losses for label, outcome in shown.runs.items()}
        for name, losses in rows.items():
            numbers = (f"{losses[place]:.4f}" if losses else "-" for place in (0, 1, -1))
            columns = "{:>20}{:>16}{:>12}".format(*numbers)
            print(f"    {name:34}{columns}  {_word(shown, name)}")
    print()


def _word(shown: Shown, name: str) -> str:
    if name == "never interrupted":
        return ""
    if name == "without dspatch":
        return "reported success, is no restore" if shown.lossy else "right"
    return _verdict(shown, name.removeprefix("with dspatch (").removesuffix(")"))


def _verdict(shown: Shown, label: str) -> str:
    outcome = shown.runs[label]
    if shown.right(outcome):
        return "right"
    if all(outcome.errors) and len(set(outcome.errors)) == 1:
        return f"stopped: the same {(outcome.errors[0] or '').split(':', 1)[0]} on all {len(outcome.errors)} ranks"
    return "NOT CAUGHT"


def _picture(shown: list[Shown], folder: Path) -> None:
    if find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed (pip install 'dspatch[pictures]')")
        return
    from dspatch.demo.picture import draw

    folder.mkdir(parents=True, exist_ok=True)
    draw(shown, folder / _PICTURE)
    print(f"picture: {folder / _PICTURE}")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
