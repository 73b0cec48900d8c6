"""A fresh process of this Python that imports dspatch, torch and deepspeed, and tells step by step how far it came.

What it tells goes into a file: both its streams belong to what it imports. A process that hangs or dies has told all
that came before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Seconds for all imports; DeepSpeed's takes ten on a slow shared file system.
LIMIT = 120.0

_PROGRAM = """
import json, os, sys, types
early = [name for name in sys.modules if name in ("dspatch", "deepspeed", "torch")]
sitecustomize = getattr(sys.modules.get("sitecustomize"), "__file__", None)
started = "_dspatch_startup" in sys.modules

def tell(step, **what):
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, **what}) + "\\n")

def step(name, act):
    try:
        tell(name, error="", **act())
    except BaseException as error:
        tell(name, error=type(error).__name__ + ": " + str(error))

def dspatch():
    import dspatch
    from dspatch.verdict.intent import parse
    parse(os.environ.get("DSPATCH_EXPECT", "").strip())
    return {}

def wrapt():
    import wrapt
    return {"version": getattr(wrapt, "__version__", "")}

def torch():
    import torch
    return {"version": str(getattr(torch, "__version__", ""))}

def deepspeed():
    import deepspeed
    return {"version": str(getattr(deepspeed, "__version__", "")), "file": deepspeed.__file__}

def ledger():
    import dataclasses, dspatch
    return {"rows": [dataclasses.asdict(row) for row in dspatch.status()]}

def others():
    from dspatch.patching.matrix import load
    from dspatch.patching.site import find
    from dspatch.patching.wrapper import chain_of
    found = {}
    for row in load().rows:
        module = sys.modules.get(row.defining_module)
        target = find(module, row.site) if module is not None else None
        links = [] if target is None else chain_of(target.attribute)
        who = [name for name in map(origin, links) if name and name.partition(".")[0] not in ("deepspeed", "dspatch")]
        if who:
            found[row.site] = who
    return {"others": found}

def origin(link):
    kind = type(link)  # isinstance believes a proxy, which says that it is what it wraps
    if kind in (staticmethod, classmethod, types.MethodType) or kind.__module__.startswith("dspatch."):
        return ""
    if kind is types.FunctionType:
        return link.__globals__.get("__name__", "")  # functools.wraps changes all other names
    wrapper = getattr(link, "_self_wrapper", None)
    return getattr(wrapper, "__module__", None) or kind.__module__ + "." + kind.__name__

tell("start", early=early, sitecustomize=sitecustomize, started=started, path=sys.path)
for act in (wrapt, dspatch, torch, deepspeed, ledger, others):
    step(act.__name__, act)
"""


@dataclass(frozen=True)
class Imports:
    """What the process told.

    Attributes:
        steps: step -> what it told: ``error`` (empty if none), and its own facts. A step that was never reached is not
            there.
        ended: how the process ended when it should not have; empty if it came to its end.
        output: the last lines that it printed.
    """

    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ended: str = ""
    output: tuple[str, ...] = ()

    def error(self, step: str) -> str:
        """What went wrong in a step; empty if it went well."""
        told = self.steps.get(step)
        return self.ended or "the process did not come so far" if told is None else str(told["error"])

    def fact(self, step: str, name: str, default: Any) -> Any:
        """One fact of a step."""
        return self.steps.get(step, {}).get(name, default)

    @property
    def path(self) -> tuple[str, ...]:
        """Its ``sys.path``; empty if it did not start."""
        return tuple(self.fact("start", "path", ()))


def look(environ: Mapping[str, str], limit: float = LIMIT) -> Imports:
    """Run the process. It and its children are gone when this returns.

    Args:
        environ: its variables.
        limit: seconds.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="dspatch-doctor-", ignore_cleanup_errors=True) as scratch:
            told, printed = Path(scratch, "told"), Path(scratch, "printed")
            ended = _run([sys.executable, "-c", _PROGRAM, str(told)], environ, printed, limit)
            lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
            output = printed.read_text(encoding="utf-8", errors="replace").splitlines() if printed.exists() else []
    except OSError as error:  # no Python, or no folder that can be written to
        return Imports(ended=f"no process could be started: {error}")
    steps: dict[str, Mapping[str, Any]] = {}
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line of a process that was ended in the middle of it
            one = json.loads(line)
            steps[one.pop("step")] = one
    return Imports(steps, ended, tuple(output[-20:]))


def _run(command: list[str], environ: Mapping[str, str], printed: Path, limit: float) -> str:
    with printed.open("wb") as sink:
        process = subprocess.Popen(
            command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"it took longer than {limit:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code < 0:
        return f"the process was ended by signal {-code}"
    return f"the process ended with exit code {code}" if code else ""
