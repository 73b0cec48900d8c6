"""What is printed: ids that stay, nothing personal, one check's failure alone; and the self-test on real ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dspatch.cli.doctor import CHECKS
from dspatch.demo.launch import JobFailed, Outcome
from dspatch.doctor import selftest
from dspatch.doctor.checks import CRASH, OK, SKIP, WARN, Answer, Check, ok, run_all
from dspatch.doctor.here import Here
from dspatch.doctor.report import exit_code, scrubber
from tests.doctor.visits import make_world, visit
from tests.support.environment import free_port, rank_environment
from tests.support.installs import Environment, run
from tests.support.paths import ROOT
from tests.support.trees import tree

HERE = Here({}, Path("/nowhere"), Path("/"))


def test_the_ids_stay() -> None:
    """Scripts and bug reports go by them: a check may come, none may go or change its name."""
    assert [check.id for check in (*CHECKS, *selftest.CHECKS)] == [
        "dspatch.installed", "dspatch.wrapt", "dspatch.requirements", "dspatch.matrix", "settings.switch", "settings.values",
        "python.starts", "torch.imports", "deepspeed.installed", "deepspeed.copies", "deepspeed.sites", "deepspeed.imports",
        "patches.fit", "patches.others", "patches.order", "startup.files", "startup.runs", "startup.sitecustomize",
        "launcher.forwards", "catalogue.faults", "selftest.load",
    ]  # fmt: skip


def raising(error: BaseException) -> Check:
    def look(here: Here) -> Answer:
        raise error

    return Check("bad", look)


@pytest.mark.parametrize("error", [ValueError("two\nlines"), SystemExit(0), RecursionError("deep")])
def test_a_check_that_fails_takes_no_other_along(error: BaseException) -> None:
    results = run_all((raising(error), Check("good", lambda here: ok("fine\nand well"))), HERE)
    assert [(id, one.status) for id, one in results] == [("bad", CRASH), ("good", OK)]
    crash, good = (one for _, one in results)
    assert type(error).__name__ in crash.line and "\n" not in crash.line
    assert any("raise error" in line for line in crash.evidence)
    assert good.line == "fine and well"
    assert exit_code(results) == 1


def test_exit_codes() -> None:
    def code(*statuses: tuple[str, str]) -> int:
        return exit_code([(id, Answer(status, "x")) for id, status in statuses])

    assert code(("a", OK), ("b", WARN), ("c", SKIP)) == 0
    assert code(("a", OK), ("b", "FAIL")) == 1
    assert code(("b", "FAIL"), ("selftest.load", SKIP)) == 3
    assert code(("selftest.load", "FAIL")) == 1


def test_the_text(editable: Environment, home: Path) -> None:
    done = editable.dspatch("doctor", HOME=str(home))
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "dspatch doctor: paste everything from this line on into a bug report"
    assert lines[1].startswith("dspatch ")
    assert [line.split()[1] for line in lines if line[:4] in ("OK  ", "WARN", "SKIP")] == [check.id for check in CHECKS]
    assert any(line.startswith("  A3 ") and "repaired" in line for line in lines)
    assert any(line.split()[:3] == ["load-guard", "compatible", "applied"] for line in lines)
    assert "\033" not in done.out
    assert editable.dspatch("doctor", "--nonsense").code == 2


def test_nothing_tells_who_ran_it(editable: Environment, home: Path, tmp_path: Path) -> None:
    """Names and paths come from everywhere: the home, the path, files, errors of other packages."""
    secret = tmp_path / "secret project"
    first = f"raise ImportError('in {home}/x/train.py and /data/alice/run.py of alice, /opt/lib/site-packages/a/b.py')"
    world = make_world(secret, first=first)
    (home / ".deepspeed_env").write_text("nonsense\n")
    (home / "sitecustomize.py").write_text("")
    other = replace(editable, path=(world, home))
    told = {"USER": "alice", "DSPATCH_REPORT": f"{home}/out.json"}
    kept = json.dumps(visit(other, home, "--verbose", **told).data)
    assert all(word in kept for word in (str(home), str(secret), "/data/alice/run.py"))
    found = visit(other, home, **told)
    said = found.check("deepspeed.imports", "FAIL")
    assert ".../run.py of <user>, site-packages/a/b.py" in said
    assert ".../train.py" in said
    text = json.dumps(found.data)
    for word in ("alice", str(tmp_path), "secret project", str(editable.folder), "/data", "home of"):
        assert word not in text, word


def test_paths_and_words_that_are_no_paths() -> None:
    scrub = scrubber(Here({"USER": "torch"}, Path("/home/bo"), Path("/")))
    text = "torch 2, n/a, https://example.org/a/b, bf16/fp16, ~/x"
    assert scrub(text) == text
    assert scrub("/home/bo/deep/file.py:12") == ".../file.py:12"
    assert scrub("found://data//alice/x") == scrub("found:/data/alice/x") == "found:.../x"


# --- the self-test ----------------------------------------------------------------------------------------------------


def test_selftest_on_a_real_release(home: Path, tmp_path: Path) -> None:
    real, extensions = tree("newest"), tmp_path / "extensions"
    extensions.mkdir()
    environ = {**rank_environment(real, rank=0, world=2, port=free_port()), "PYTHONPATH": None, "HOME": str(home),
               "TORCH_EXTENSIONS_DIR": str(extensions)}  # fmt: skip
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environ[name] = None
    python = ROOT / ".venv" / "bin" / "python"
    done = run([python, "-m", "dspatch", "doctor", "--selftest", "--json", "--verbose"], real.path, ROOT, **environ)
    assert done.code == 0, done.out + done.err
    data = json.loads(done.out)
    checks = {one["id"]: one for one in data["checks"]}
    assert checks["selftest.load"]["line"].startswith("a flipped bit in a shard raised LoadIncomplete on 2 ranks")
    for id in ("deepspeed.sites", "patches.fit", "deepspeed.imports", "patches.others", "torch.imports"):
        assert checks[id]["status"] == OK, checks[id]
    needed = [one for one in data["sites"] if one["tier"] != "not needed"]
    assert {one["tier"] for one in needed} == {"tested"}
    assert {one["state"] for one in needed} == {"applied"}
    assert list(extensions.iterdir()) == [], "a build that is ended at the time limit would leave its lock to the user"


@pytest.mark.parametrize("first", [None, "raise ImportError('half a DeepSpeed')"])
def test_selftest_without_a_deepspeed_that_runs(
    first: str | None, editable: Environment, home: Path, tmp_path: Path
) -> None:
    path = () if first is None else (make_world(tmp_path / "broken", first=first),)
    found = visit(replace(editable, path=path), home, "--selftest")
    assert found.code == 3
    said = found.check("selftest.load", "SKIP")
    assert "could not be run" in said
    assert ("half a DeepSpeed" in said) == (first is not None)


SAME = "LoadIncomplete: the moments"
#: Three steps and a load.
HEALTHY = [0.4, 0.3, 0.2, 0.3]


@pytest.mark.parametrize(
    ("outcome", "status", "text"),
    [
        (Outcome(HEALTHY, [SAME, SAME], ["INFO: active"]), OK, "raised LoadIncomplete on 2 ranks"),
        (
            Outcome(HEALTHY, [SAME, None], []),
            "FAIL",
            "did not raise the same error on all ranks (LoadIncomplete, None)",
        ),
        (Outcome(HEALTHY, [SAME, "LoadIncomplete: other"], []), "FAIL", "did not raise the same error"),
        (Outcome([*HEALTHY, 0.1], [None, None], []), "FAIL", "did not raise the same error on all ranks (None, None)"),
        (
            Outcome(HEALTHY[1:], [SAME, SAME], []),
            "FAIL",
            "a healthy checkpoint was not saved and loaded: LoadIncomplete",
        ),
        (Outcome(HEALTHY, [SAME, SAME], ["WARNING: partial load"]), "FAIL", "not silent: WARNING: partial load"),
    ],
)
def test_selftest_is_judged(outcome: Outcome, status: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_save_damage_load", lambda folder: outcome)
    answer = looked_at()
    assert (answer.status, text in answer.line) == (status, True), answer


def test_selftest_out_of_time_says_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(folder: str) -> Outcome:
        raise JobFailed("")

    monkeypatch.setattr(selftest, "_save_damage_load", slow)
    monkeypatch.setattr(selftest, "LIMIT", 0.0)
    answer = looked_at()
    assert (answer.status, "no result within 0 s" in answer.line, "again" in answer.fix) == (SKIP, True, True)


def looked_at() -> Answer:
    here = Here({}, Path("/"), Path("/"))
    here.__dict__["deepspeed"] = object()
    ((_, answer),) = run_all(selftest.CHECKS, here)
    return answer
