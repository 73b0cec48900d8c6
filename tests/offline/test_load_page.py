"""A load report, made by a real load on two ranks, as text and as a page of the same form as an inspection's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspatch.offline.load_page import load_page
from dspatch.verdict.report import LoadReport
from tests.checkpoint.conftest import Saved
from tests.offline.browsing import Page, fits, words_of
from tests.offline.looking import run
from tests.support.pool import Pools

_LOAD = "tests.faults.scenarios.loading:load"


@pytest.fixture
def report(pools: Pools, saved: Saved, tmp_path: Path) -> Path:
    """Of a healthy load."""
    return _report(pools, saved("newest", "z2-rich"), tmp_path / "healthy.json")


@pytest.fixture
def lossy(pools: Pools, saved: Saved, tmp_path: Path) -> Path:
    """Of a load whose bf16 optimizer state was not saved."""
    return _report(pools, saved("stage0_loses_moments", "z0-bf16"), tmp_path / "lossy.json", "stage0_loses_moments",
                   {"stage": 0, "precision": "bf16"})  # fmt: skip


def _report(pools: Pools, folder: Path, target: Path, role: str = "newest", engine: dict[str, Any] | None = None) -> Path:
    rich = {"stage": 2, "precision": "bf16", "groups": 2, "scheduler": "warmup", "model": {"frozen": True, "tied": True}}
    pools.get(role, 2).run(_LOAD, timeout=120, folder=str(folder), engine=engine or rich,
                           settings={"mode": "warn", "report": str(target)})  # fmt: skip
    return target


def test_a_report_comes_back_as_it_was(report: Path, lossy: Path) -> None:
    for path, ok in ((report, True), (lossy, False)):
        data = json.loads(path.read_text(encoding="utf-8"))
        made = LoadReport.from_dict(data)
        assert (made.to_dict(), made.ok, data["ok"]) == (data, ok, ok)
        code, output, errors = run("--report", str(path))
        assert (code, output, errors) == (0 if ok else 1, f"{made}\n", "")
        assert json.loads(run("--report", str(path), "--json")[1]) == data


def test_the_page_says_everything(report: Path, lossy: Path, tmp_path: Path) -> None:
    for path, code, words in (
        (report, 0, ("restored", "rank 0: restored", "rank 1: restored", "Largest", "compared")),
        (lossy, 1, ("not restored: masters mismatch", "rank 1: not restored", "moments absent", "expected")),
    ):
        target = tmp_path / "page.html"
        assert run("--report", str(path), "--html", str(target))[0] == code
        shown = words_of(target)
        data = json.loads(path.read_text(encoding="utf-8"))
        assert all(word in shown for word in (*data["outcomes"], data["request"]["folder"]))
        for word in words:
            assert word in shown, word


@pytest.mark.parametrize("width", [390, 1100])
def test_the_page_fits_a_phone_and_a_desk(width: int, lossy: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    run("--report", str(lossy), "--html", str(target))
    fits(target, width)


def test_thousands_of_ranks_and_odd_values(lossy: Path) -> None:
    data = json.loads(lossy.read_text(encoding="utf-8"))
    data["world"] = 10_000
    data["by_rank"] = {"moments": {"restored": [*range(9_000)], "mismatch": [*range(9_000, 10_000)]}}
    data["largest"] = {"exp_avg": [float("nan"), float("inf"), 0.0]}
    data["request"]["folder"] = "<script>\x1b"
    text = load_page(data, "x")
    assert text.count("<li") == 1_000 and "9,000 restored in all components" in text
    assert "\x1b" not in text
    assert "rank 9000: not restored" in " ".join(Page(text).words)


def test_what_is_no_report(tmp_path: Path, report: Path) -> None:
    data = json.loads(report.read_text(encoding="utf-8"))
    for text in ("{}", "[]", "no", json.dumps({**data, "schema": 99}), json.dumps({**data, "outcomes": 3}), "\xff"):
        (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
        code, output, errors = run("--report", str(tmp_path / "x.json"))
        assert (code, output) == (3, "") and "is no load report" in errors and errors.count("\n") == 1
    assert run("--report", str(tmp_path / "gone.json"))[0] == 3
    assert run("--report", str(report), "--deep")[0] == run("--report", str(report), "--all")[0] == 2
    code, output, errors = run("--report", str(report), "--html", str(tmp_path / "no" / "page.html"))
    assert (code, output) == (3, "") and "cannot be written" in errors
