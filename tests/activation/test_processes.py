"""Child processes: what fork hands on, what spawn has to be told, and what the startup file does for both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.installs import Environment, run

SCRIPT = """
import multiprocessing
{top}
def count(queue):
    import deepspeed, look
    queue.put(look.guards())
if __name__ == "__main__":
    {main}
    context = multiprocessing.get_context("{method}")
    queue = context.SimpleQueue()
    child = context.Process(target=count, args=(queue,))
    child.start(); child.join(60)
    print(queue.get())
"""

#: The spawned child runs the script's top again and nothing below `__name__ == "__main__"`.
CASES = [
    ("fork", "import dspatch", "pass", 1),
    ("fork", "import dspatch", "import deepspeed", 1),
    ("fork", "pass", "import dspatch", 1),
    ("fork", "pass", "pass", 0),
    ("spawn", "import dspatch", "import deepspeed", 1),
    ("spawn", "pass", "import dspatch", 0),
    ("spawn", "pass", "pass", 0),
    ("forkserver", "import dspatch", "pass", 1),
    ("forkserver", "pass", "pass", 0),
]


@pytest.mark.parametrize(("method", "top", "main", "guards"), CASES)
def test_children(method: str, top: str, main: str, guards: int, wheel: Environment, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(method=method, top=top, main=main))
    done = run([wheel.python, script], *wheel.path)
    assert done.out == f"{guards}\n", done.err
    started = run([wheel.python, script], *wheel.path, DSPATCH="1")
    assert started.out == "1\n", started.err
    assert run([wheel.python, script], *wheel.path, DSPATCH="0").out == "0\n"


def test_deactivated_stays_so_in_a_fork_only(wheel: Environment, tmp_path: Path) -> None:
    for method, guards in (("fork", 0), ("spawn", 1)):
        script = tmp_path / f"{method}.py"
        script.write_text(SCRIPT.format(method=method, top="import dspatch", main="dspatch.deactivate()"))
        assert run([wheel.python, script], *wheel.path).out == f"{guards}\n"
