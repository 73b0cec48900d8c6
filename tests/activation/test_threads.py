"""Many threads at the first import of deepspeed: nobody gets it without its guard."""

from __future__ import annotations

import pytest

from tests.support.installs import Environment

WORK = """
import sys, threading
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
