"""Startup files, by whom and whether they work; sitecustomize; and what the launcher hands on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspatch.doctor import launcher
from dspatch.doctor.checks import run_all
from dspatch.doctor.here import Here
from tests.doctor.visits import visit
from tests.support.installs import Environment


def test_by_pip(wheel: Environment, home: Path) -> None:
    found = visit(wheel, home)
    assert found.check("startup.files", "OK").startswith("by pip in site-packages ")
    assert "starts dspatch" in found.check("startup.runs", "OK")


def test_by_activate(site: Environment, home: Path) -> None:
    assert visit(site, home).check("startup.files", "OK").startswith("none: ")
    assert site.dspatch("activate").code == 0
    found = visit(site, home, DSPATCH="1")
    assert found.check("startup.files", "OK").startswith("by dspatch activate in site-packages ")
    found.check("startup.runs", "OK")


def test_on_and_nothing_acts_on_it(editable: Environment, home: Path) -> None:
    found = visit(editable, home, DSPATCH="1")
    assert found.code == 1
    assert "nothing here acts on it" in found.check("startup.files", "FAIL")
    found.check("startup.runs", "SKIP")


def test_under_run_something_acts_on_it(editable: Environment, home: Path) -> None:
    command = [str(editable.python), "-m", "dspatch", "doctor"]
    done = editable.dspatch("run", "--", *command, HOME=str(home))
    assert done.code == 0, done.out
    assert "startup.files          none" in done.out
    assert "sitecustomize.py is of dspatch" in done.out


def test_files_that_are_not_all_there_old_or_foreign(site: Environment, home: Path) -> None:
    assert site.dspatch("activate").code == 0
    startup, module = site.site / "dspatch.pth", site.site / "_dspatch_startup.py"
    (site.site / "dspatch.start").unlink()
    assert "without dspatch.start" in visit(site, home).check("startup.files", "WARN")
    assert site.dspatch("activate").code == 0
    module.write_text(module.read_text() + "\n# of an older dspatch\n")
    assert "_dspatch_startup.py is not the one of this dspatch" in visit(site, home).check("startup.files", "WARN")
    startup.write_text("# nothing of ours\n")
    found = visit(site, home)
    assert "dspatch.pth is somebody else's" in found.check("startup.files", "WARN")
    assert "does not start dspatch" in found.check("startup.runs", "FAIL")
    assert found.code == 1


def foreign(folder: Path) -> Path:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("HERE = True\n")
    return folder


def test_sitecustomize(site: Environment, home: Path, tmp_path: Path) -> None:
    first, second = foreign(tmp_path / "first"), foreign(tmp_path / "second")
    one = visit(replace(site, path=(first, *site.path)), home)
    assert "which is not of dspatch, is run as ever" in one.check("startup.sitecustomize", "OK")
    two = visit(replace(site, path=(first, second, *site.path)), home)
    assert "hides .../sitecustomize.py, which is not run" in two.check("startup.sitecustomize", "WARN")
    assert site.dspatch("activate", "--sitecustomize").code == 0
    ours = visit(site, home)
    assert "site-packages/sitecustomize.py is of dspatch" in ours.check("startup.sitecustomize", "OK")
    hidden = visit(replace(site, path=(first, *site.path)), home)
    assert "hides the one of dspatch" in hidden.check("startup.sitecustomize", "WARN")
    (site.site / "zz-behind.pth").write_text(f"{second}\n")
    assert "is of dspatch, and runs " in visit(site, home).check("startup.sitecustomize", "OK")


# --- the launcher -----------------------------------------------------------------------------------------------------


def test_variables_that_do_not_reach_other_nodes(editable: Environment, home: Path) -> None:
    assert "no DSPATCH variable" in visit(editable, home).check("launcher.forwards", "OK")
    said = visit(editable, home, DSPATCH_MODE="warn", DSPATCH_TAGS="error").check("launcher.forwards", "WARN")
    assert "DSPATCH_MODE=warn DSPATCH_TAGS=error" in said
    (home / ".deepspeed_env").write_text("DSPATCH_MODE=warn\nNCCL_DEBUG=INFO\n")
    said = visit(editable, home, DSPATCH_MODE="warn", DSPATCH_TAGS="error").check("launcher.forwards", "WARN")
    assert "DSPATCH_MODE" not in said and "DSPATCH_TAGS" in said
    assert "hands on DSPATCH_MODE" in visit(editable, home, DSPATCH_MODE="warn").check("launcher.forwards", "OK")


@pytest.mark.parametrize(
    ("text", "mode", "status", "says"),
    [
        ("DSPATCH_MODE=warn", "strict", "WARN", "wins over this shell: DSPATCH_MODE=warn, not strict"),
        ("DSPATCH_MODE=warn", None, "OK", "hands on DSPATCH_MODE=warn"),
        ("A=1\n\nDSPATCH_MODE=warn", "warn", "FAIL", "line 2"),
        ("NCCL_DEBUG=INFO=x", None, "OK", "no DSPATCH variable"),
    ],
)
def test_the_file(text: str, mode: str | None, status: str, says: str, editable: Environment, home: Path) -> None:
    (home / "job.env").write_text(text)
    found = visit(editable, home, DS_ENV_FILE="job.env", DSPATCH_MODE=mode)
    assert says in found.check("launcher.forwards", status)
    assert found.code == (status == "FAIL")


def test_the_file_of_the_working_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in (("home", "warn"), ("work", "observe")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".deepspeed_env").write_text(f"DSPATCH_MODE={mode}")
    here = Here({"DSPATCH_MODE": "observe"}, tmp_path / "home", tmp_path / "work")
    assert [one.status for _, one in run_all(launcher.CHECKS, here)] == ["OK"]
    monkeypatch.setattr(Path, "read_text", unreadable)
    ((_, answer),) = run_all(launcher.CHECKS, here)
    assert (answer.status, "No entry" in answer.line) == ("FAIL", True)


def unreadable(self: Path, **kwargs: str) -> str:
    raise PermissionError(13, "No entry")
