"""`dspatch run -- CMD`: the command becomes the process, with dspatch on in it and in its children."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dspatch.activation.sites import PRIVATE_SITE
from tests.support.installs import Environment

LOOK = "import deepspeed, look; print(look.guards())"


@pytest.fixture(scope="module", params=["wheel", "editable"])
def environment(request: pytest.FixtureRequest) -> Environment:
    """With a startup file, and without one."""
    found: Environment = request.getfixturevalue(request.param)
    return found


def has_startup_file(environment: Environment) -> bool:
    return (environment.site / "dspatch.pth").exists()


def test_dspatch_is_on_in_the_command(environment: Environment) -> None:
    done = environment.dspatch("run", "--", str(environment.python), "-c", LOOK)
    assert (done.code, done.out) == (0, "1\n"), done.err
    assert environment.code(LOOK).out == "0\n", "and nothing stays behind"


def test_and_in_its_children(environment: Environment) -> None:
    python = environment.python
    done = environment.dspatch(
        "run", "--", "sh", "-c", f'{python} -c \'import os; os.system("{python} -c \\"{LOOK}\\"")\''
    )
    assert (done.code, done.out) == (0, "1\n"), done.err


def test_the_double_dash_may_be_left_away(environment: Environment) -> None:
    assert environment.dspatch("run", str(environment.python), "-c", LOOK).out == "1\n"


def test_the_kill_switch_stays(environment: Environment) -> None:
    done = environment.dspatch("run", "--", str(environment.python), "-c", LOOK, DSPATCH="off")
    assert (done.code, done.out) == (0, "0\n")
    assert "DSPATCH is an off word and stays so" in done.err


def test_variables_of_the_command(environment: Environment, deepspeed: Path) -> None:
    """PYTHONPATH is kept, behind a folder of ours where there is no startup file; the rest is DSPATCH=1."""
    show = "import os; print(os.environ['DSPATCH'], os.environ['DSPATCH_MODE'], os.environ.get('PYTHONPATH'))"
    done = environment.dspatch("run", "--", str(environment.python), "-c", show, DSPATCH_MODE="warn")
    *words, path = done.out.split()
    assert words == ["1", "warn"]
    *ours, theirs = path.split(os.pathsep)
    assert theirs == str(deepspeed)
    assert [Path(entry).name for entry in ours] == ([] if has_startup_file(environment) else [PRIVATE_SITE.name])
    alone = replace(environment, path=()).dspatch("run", "--", str(environment.python), "-c", show, DSPATCH_MODE="warn")
    assert alone.out.split()[2:] == ours, "no empty entry, which would be the working folder"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["sh", "-c", "exit 0"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], -signal.SIGTERM),
        (["sh", "-c", "kill -KILL $$"], -signal.SIGKILL),
        (["sh", "-c", "kill -PIPE $$; exit 0"], -signal.SIGPIPE),
        (["no-such-command-anywhere"], 127),
        (["/"], 126),
        ([], 2),
    ],
)
def test_exit_codes_and_signals_are_its_own(words: list[str], code: int, editable: Environment) -> None:
    done = editable.dspatch("run", "--", *words)
    assert done.code == code, done.err
    assert ("dspatch run" in done.err) == (code in (2, 126, 127))
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("mode", "text"), [(0o644, "#!/bin/sh\n"), (0o755, "no program at all\n")])
def test_what_cannot_be_executed(mode: int, text: str, editable: Environment, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(mode)
    done = editable.dspatch("run", "--", str(script))
    assert done.code == 126 and f"dspatch run: {script}: " in done.err
    script.write_text("#!/bin/sh\necho well\n")
    script.chmod(0o755)
    assert editable.dspatch("run", "--", str(script)).out == "well\n"


def test_it_is_one_process(editable: Environment) -> None:
    """So signals, job control and `kill` reach the command itself."""
    started = subprocess.Popen(
        [editable.python, "-m", "dspatch", "run", "--", "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True
    )
    said, _ = started.communicate(timeout=60)
    assert int(said) == started.pid


def test_words_that_look_like_options_are_the_commands(editable: Environment) -> None:
    done = editable.dspatch("run", "--", "echo", "--", "-h", "--version", "status", "a  b")
    assert done.out == "-- -h --version status a  b\n"


def test_nested(editable: Environment) -> None:
    inner = [str(editable.python), "-m", "dspatch", "run", "--", str(editable.python), "-c", LOOK]
    assert editable.dspatch("run", "--", *inner).out == "1\n"


def test_another_interpreter_is_left_alone(editable: Environment, tmp_path: Path) -> None:
    """PYTHONPATH reaches every Python; one that dspatch was not installed for may not even have its dependencies."""
    other = editable.copy(tmp_path / "other")
    code = "import sys; print('_dspatch_startup' in sys.modules, 'dspatch' in sys.modules)"
    done = editable.dspatch("run", "--", str(other.python), "-c", code)
    assert (done.code, done.out, done.err) == (0, "False False\n", "")
    assert editable.dspatch("run", "--", str(editable.python), "-c", code).out == "True True\n"


def test_a_launcher_from_the_search_path(environment: Environment, tmp_path: Path) -> None:
    launcher = tmp_path / "launch"
    launcher.write_text(f'#!/bin/sh\nexec {environment.python} "$@"\n')
    launcher.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert environment.dspatch("run", "launch", "-c", LOOK, PATH=path).out == "1\n"
    assert shutil.which("launch") is None
