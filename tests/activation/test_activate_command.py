"""`dspatch activate` and `dspatch deactivate`: startup files where pip installs none, and nothing of anybody else's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.installs import Ended, Environment, run

LOOK = "import deepspeed, look; print(look.guards())"
FILES = ("_dspatch_startup.py", "dspatch.pth", "dspatch.start")


@pytest.fixture
def env(editable: Environment, tmp_path: Path) -> Environment:
    """An editable install that the test may change."""
    return editable.copy(tmp_path / "env")


def on(environment: Environment) -> bool:
    return environment.code(LOOK, DSPATCH="1").out == "1\n"


def unprivileged(environment: Environment, *arguments: str) -> Ended:
    """Run dspatch with file permissions in force: without the capability that lets root write everywhere."""
    program = (
        "import ctypes, os, sys\n"
        "dropped = os.geteuid() != 0 or ctypes.CDLL(None).prctl(24, 1, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE\n"
        "assert dropped\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program, environment.python, "-m", "dspatch", *arguments]
    return run(command, *environment.path)


def test_there_and_back(env: Environment) -> None:
    before = env.files()
    assert not on(env)
    done = env.dspatch("activate")
    assert done.code == 0, done.err
    *wrote, last = done.out.splitlines()
    assert wrote == [f"wrote          {env.site / name}" for name in FILES]
    assert last == f"DSPATCH=1 now starts dspatch in {env.python}"
    assert on(env)
    assert env.code(LOOK).out == "0\n" and env.code(LOOK, DSPATCH="0").out == "0\n"
    assert {Path(name).name for name in env.files() - before} == set(FILES)

    done = env.dspatch("deactivate")
    assert (done.code, done.err) == (0, "")
    assert sorted(done.out.splitlines()) == sorted(f"removed        {env.site / name}" for name in FILES)
    assert env.files() == before and not on(env)
    assert not list((env.site / "__pycache__").glob("_dspatch_startup.*"))


def test_twice(env: Environment) -> None:
    env.dspatch("activate")
    again = env.dspatch("activate")
    assert again.code == 0 and again.out.count("already there") == 3 and "wrote" not in again.out
    env.dspatch("deactivate")
    again = env.dspatch("deactivate")
    assert (again.code, again.out) == (0, "nothing to remove\n")


def test_only_shown(env: Environment) -> None:
    before = env.files()
    done = env.dspatch("activate", "--dry-run")
    assert done.code == 0 and done.out.count("would write") == 3 and "now starts" not in done.out
    assert env.files() == before
    env.dspatch("activate")
    activated = env.files()
    done = env.dspatch("deactivate", "--dry-run")
    assert done.code == 0 and done.out.count("would remove") == 3
    assert env.files() == activated and on(env)


def test_files_of_an_older_version_are_renewed(env: Environment) -> None:
    env.dspatch("activate")
    texts = {name: (env.site / name).read_text() for name in FILES}
    for name in ("_dspatch_startup.py", "dspatch.pth"):
        (env.site / name).write_text(f"# an older dspatch\n{texts[name]}")
    done = env.dspatch("activate")
    assert done.out.count("wrote") == 2 and done.out.count("already there") == 1
    assert {name: (env.site / name).read_text() for name in FILES} == texts


@pytest.mark.parametrize("name", [*FILES, "sitecustomize.py"])
def test_a_file_of_somebody_else_stays(name: str, env: Environment) -> None:
    foreign = env.site / name
    foreign.write_text("import os\n")
    before = env.files()
    done = env.dspatch("activate", "--sitecustomize")
    assert (done.code, done.out) == (1, "")
    assert f"{foreign} is somebody else's" in done.err
    assert env.files() == before and foreign.read_text() == "import os\n"
    assert env.dspatch("deactivate").out == "nothing to remove\n"
    assert foreign.read_text() == "import os\n"
    foreign.unlink()
    assert env.dspatch("activate", "--sitecustomize").code == 0


def test_a_sitecustomize_on_request(env: Environment) -> None:
    before = env.files()
    done = env.dspatch("activate", "--sitecustomize")
    assert done.code == 0 and f"wrote          {env.site / 'sitecustomize.py'}" in done.out
    assert on(env) and env.code(LOOK).out == "0\n"
    assert env.dspatch("activate", "--sitecustomize").out.count("already there") == 4
    assert env.dspatch("deactivate").out.count("removed") == 4
    assert env.files() == before


@pytest.mark.parametrize("kind", ["file", "package"])
def test_a_sitecustomize_that_comes_first_is_a_reason_not_to_write_one(
    kind: str, env: Environment, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    file = first / "sitecustomize.py" if kind == "file" else first / "sitecustomize" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.touch()
    before = env.files()
    theirs = Environment(env.folder, (first, *env.path))
    done = theirs.dspatch("activate", "--sitecustomize")
    assert done.code == 1 and f"{file} is found first" in done.err and "leave --sitecustomize away" in done.err
    assert env.files() == before
    assert theirs.dspatch("activate").code == 0 and on(theirs)


def test_a_package_beside_it_comes_first_too(env: Environment) -> None:
    package = env.site / "sitecustomize"
    package.mkdir()
    (package / "__init__.py").touch()
    done = env.dspatch("activate", "--sitecustomize")
    assert done.code == 1 and "is found first" in done.err
    assert env.dspatch("activate").code == 0 and on(env)


def test_files_of_a_wheel_belong_to_pip(wheel: Environment, tmp_path: Path) -> None:
    copy = wheel.copy(tmp_path / "env")
    before = copy.files()
    done = copy.dspatch("activate")
    assert done.code == 0 and done.out.count("already there") == 3
    done = copy.dspatch("deactivate")
    assert done.code == 0 and done.out.count("of the wheel") == 3
    assert "pip uninstall dspatch" in done.out and "DSPATCH=0" in done.out
    assert copy.files() == before and on(copy)
    copy.dspatch("activate", "--sitecustomize")
    assert f"removed        {copy.site / 'sitecustomize.py'}" in copy.dspatch("deactivate").out
    assert copy.files() == before


def test_a_folder_that_cannot_be_written_to(env: Environment) -> None:
    os.chmod(env.site, 0o555)
    try:
        done = unprivileged(env, "activate")
        assert (done.code, done.out) == (3, "")
        assert f"no site-packages can be written to: {env.site}" in done.err and "dspatch run -- CMD" in done.err
    finally:
        os.chmod(env.site, 0o755)
    assert unprivileged(env, "activate").code == 0
    os.chmod(env.site, 0o555)
    try:
        done = unprivileged(env, "deactivate")
        assert done.code == 3 and "Permission denied" in done.err and "Traceback" not in done.err
        assert on(env)
    finally:
        os.chmod(env.site, 0o755)


def test_an_interpreter_that_does_not_read_them(env: Environment) -> None:
    """Here: its site module was taken over by something else. The files stay, and the exit code says that it is not on."""
    (env.site / "sitecustomize.py").write_text("import sys; sys.modules.pop('_dspatch_startup', None)\n")
    done = env.dspatch("activate")
    assert done.code == 1 and "does not read these files; use `dspatch run -- CMD`" in done.err


def test_an_interpreter_that_cannot_be_asked(env: Environment) -> None:
    (env.site / "sitecustomize.py").write_text("import os; os.environ.get('DSPATCH') and os._exit(9)\n")
    done = env.dspatch("activate")
    assert done.code == 3 and "could not be asked how it starts" in done.err and "Traceback" not in done.err


def test_left_over_after_the_editable_install_is_gone(env: Environment) -> None:
    """pip does not know these files; they say one line to those who ask for dspatch."""
    env.dspatch("activate", "--sitecustomize")
    env.pip("uninstall", "--yes", "--quiet", "dspatch")
    done = env.code(LOOK, DSPATCH="1")
    assert (done.code, done.out) == (0, "0\n")
    assert done.err.count("dspatch is not installed here") == 1
    assert env.code(LOOK).err == ""
    (env.site / "_dspatch_startup.py").unlink()
    done = env.code(LOOK, DSPATCH="1")
    assert (done.code, done.out, done.err) == (0, "0\n", "")
