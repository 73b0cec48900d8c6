"""Many threads at the first import of deepspeed: nobody gets it without its guard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.installs import Environment

WORK = """
import sys, threading
import typing, dataclasses  # dataclasses trips over a half imported typing, whoever imports it
{first}
start, seen = threading.Barrier(16), []
sys.setswitchinterval(1e-5)
def work(number):
    start.wait()
    {step}
    import deepspeed, look
    seen.append(look.guards())
threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join(60)
print(len(seen), *set(seen))
"""

STEPS = {
    "all import deepspeed": "pass",
    "some look for it": "import importlib.util; number % 2 and importlib.util.find_spec('deepspeed')",
    "all import dspatch first": "import dspatch",
    "some activate": "import dspatch; number % 2 and dspatch.activate()",
}


@pytest.mark.parametrize("step", STEPS)
def test_every_thread_sees_the_guard(step: str, checkout: Environment) -> None:
    done = checkout.code(WORK.format(first="import dspatch", step=STEPS[step]))
    assert done.out.split() == ["16", "1"], done.err


def test_without_dspatch_no_thread_does(checkout: Environment) -> None:
    assert checkout.code(WORK.format(first="", step="pass")).out.split() == ["16", "0"]


def test_a_failing_start_stops_every_thread(checkout: Environment) -> None:
    code = """
import sys, threading
sys.modules["wrapt"] = None
import dspatch
start, seen = threading.Barrier(16), []
def work():
    start.wait()
    try:
        import deepspeed
        seen.append("imported")
    except dspatch.PatchFailed:
        seen.append("stopped")
threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join(60)
print(len(seen), *set(seen))
"""
    assert checkout.code(code).out == "16 stopped\n"
    assert checkout.code(code.replace('sys.modules["wrapt"] = None', "")).out == "16 imported\n"


YAML = """
import sys
half, go_on = sys.test_events
half.set()
assert go_on.wait(30)
import colorsys  # any module that is not loaded yet
sys.path.remove(__file__.rpartition("/")[0])
del sys.modules["yaml"]
import yaml  # the real one
"""

HALF_IMPORTED = """
import faulthandler, sys, threading, typing
faulthandler.dump_traceback_later(30, exit=True)
{first}
sys.test_events = half, go_on = threading.Event(), threading.Event()
other = threading.Thread(target=__import__, args=("yaml",))
other.start()
assert half.wait(30)
threading.Timer(0.5, go_on.set).start()
import deepspeed, look
other.join()
print(look.guards(), "colorsys" in sys.modules)
"""


@pytest.mark.parametrize(("first", "guards"), [("import dspatch", 1), ("pass", 0)])
def test_another_thread_in_the_middle_of_an_import_that_dspatch_needs(
    first: str, guards: int, checkout: Environment, tmp_path: Path
) -> None:
    """Python holds the lock of all imports around finders: one that imports there would wait for ever."""
    (tmp_path / "yaml.py").write_text(YAML)
    slow = replace(checkout, path=(tmp_path, *checkout.path))
    done = slow.code(HALF_IMPORTED.format(first=first))
    assert done.out == f"{guards} True\n", done.err
