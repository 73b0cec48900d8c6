"""The startup file of an installed wheel: arms where `DSPATCH` asks for it, and never breaks any other Python process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.activation.test_import_order import ASKING
from tests.support.installs import Environment, run

LOOK = "import deepspeed, look; print(look.guards())"


@pytest.mark.parametrize("options", [(), ("-E",), ("-O", "-B"), ("-X", "utf8")])
def test_it_arms(options: tuple[str, ...], wheel: Environment, deepspeed: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(deepspeed)!r}); {LOOK}"  # -E does not read PYTHONPATH
    assert wheel.code(code, *options, DSPATCH="1").out == "1\n"
    assert wheel.code(code, *options).out == "0\n"


def test_isolated_too_and_not_without_site(wheel: Environment, deepspeed: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(deepspeed)!r}); {LOOK}"
    assert wheel.code(code, "-I", DSPATCH="1").out == "1\n"
    assert wheel.code(code, "-S", DSPATCH="1").out == "0\n"


@pytest.mark.parametrize("switch", [None, "", "0", "1", "junk", "\n", "ä"])
def test_unrelated_processes_notice_nothing(switch: str | None, wheel: Environment) -> None:
    code = (
        "import json, threading, subprocess, multiprocessing, importlib.util; print(importlib.util.find_spec('torch'))"
    )
    done = wheel.code(code, DSPATCH=switch)
    assert (done.code, done.out, done.err) == (0, "None\n", "")
    failing = wheel.code("import sys; sys.exit(3)", DSPATCH=switch)
    assert (failing.code, failing.err) == (3, "")


def test_no_finder_is_left_when_it_is_off(wheel: Environment) -> None:
    code = "import sys; print(len([entry for entry in sys.meta_path if 'spatch' in type(entry).__module__]))"
    assert [wheel.code(code, DSPATCH=switch).out for switch in ("", "0", "1", "junk")] == ["0\n", "0\n", "1\n", "1\n"]


def test_the_file_for_python_3_15(wheel: Environment) -> None:
    """There each line is `module:function`; it has no condition, and is read in every process of the environment."""
    (line,) = (wheel.site / "dspatch.start").read_text().splitlines()
    name, _, function = line.partition(":")
    code = f"import sys, importlib\ngetattr(importlib.import_module({name!r}), {function!r})()\n{LOOK}"
    for switch, guards in ((None, 0), ("0", 0), ("1", 1)):
        done = wheel.code(f"import site; {code}", "-I", "-c", "pass", DSPATCH=switch)
        assert done.code == 0
        started = run(
            [wheel.python, "-S", "-c", f"import sys; sys.path[:0] = {_path(wheel)!r}\n{code}"], DSPATCH=switch
        )
        assert started.out == f"{guards}\n", started.err


def _path(environment: Environment) -> list[str]:
    return [*map(str, environment.path), str(environment.site)]


def test_running_the_line_twice_is_once(wheel: Environment) -> None:
    """Python itself runs the lines of a `.pth` file twice in a virtual environment."""
    code = f"import sys, _dspatch_startup as s; s.main(); s.main(); print(len(s._started)); {LOOK}"
    assert wheel.code(code, DSPATCH="1").out.split() == ["1", "1"]
    assert wheel.code(code).out.split() == ["0", "0"]


def test_left_over_after_dspatch_is_gone(wheel: Environment, tmp_path: Path) -> None:
    """Whoever asked for dspatch is told in one line; deepspeed works."""
    orphaned = wheel.copy(tmp_path / "env")
    shutil.rmtree(orphaned.site / "dspatch")
    assert orphaned.code("import json", DSPATCH="1").err == ""
    code = "import importlib.util as u; u.find_spec('json')\nfor _ in range(2): import deepspeed, look\nprint(look.guards())"
    done = orphaned.code(code, DSPATCH="1")
    assert (done.code, done.out) == (0, "0\n")
    assert done.err == "dspatch: DSPATCH is set, but dspatch is not installed here: loads are not checked\n"
    assert orphaned.code(code, DSPATCH="0").err == orphaned.code(code).err == ""
    (orphaned.site / "_dspatch_startup.py").unlink()
    for switch in ("1", "0", None):
        done = orphaned.code(code, DSPATCH=switch)
        assert (done.code, done.out, done.err) == (0, "0\n", "")


@pytest.mark.parametrize("file", ["settings.py", "activation/finder.py"])
def test_a_broken_dspatch_stops_deepspeed_only(file: str, wheel: Environment, tmp_path: Path) -> None:
    broken = wheel.copy(tmp_path / "env")
    (broken.site / "dspatch" / file).write_text("raise RuntimeError('broken on purpose')\n")
    unrelated = broken.code(
        "import json, importlib.util; print(importlib.util.find_spec('deepspeed').name)", DSPATCH="1"
    )
    assert (unrelated.code, unrelated.out, unrelated.err) == (0, "deepspeed\n", "")
    done = broken.code(LOOK, DSPATCH="1")
    assert done.code == 1 and "RuntimeError: broken on purpose" in done.err
    assert broken.code(LOOK).out == "0\n"


def test_a_broken_dspatch_and_another_finder_that_asks_all_others(wheel: Environment, tmp_path: Path) -> None:
    broken = wheel.copy(tmp_path / "env")
    (broken.site / "dspatch" / "settings.py").write_text("raise RuntimeError('broken on purpose')\n")
    for code in (ASKING, ""):
        done = broken.code(f"{code}\nimport deepspeed", DSPATCH="1")
        assert done.code == 1 and "RuntimeError: broken on purpose" in done.err
    assert broken.code(f"{ASKING}\nimport deepspeed").code == 0


def test_a_broken_dspatch_stops_every_thread(wheel: Environment, tmp_path: Path) -> None:
    broken = wheel.copy(tmp_path / "env")
    (broken.site / "dspatch" / "settings.py").write_text("raise RuntimeError('broken on purpose')\n")
    code = """
import importlib.util, threading
start, ended = threading.Barrier(8), []
def look():
    start.wait()
    for _ in range(200):
        importlib.util.find_spec("deepspeed")
def work():
    start.wait()
    for _ in range(50):
        try:
            import deepspeed
            ended.append("imported")
        except RuntimeError:
            ended.append("stopped")
threads = [threading.Thread(target=target) for target in [look, work] * 4]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(ended), *set(ended))
"""
    assert broken.code(code, DSPATCH="1").out == "200 stopped\n"
    assert broken.code(code).out == "200 imported\n"
