"""The same lossy load in every mode, level and declared intent; and the report that a program reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of


def lossy(pools: Pools, folder: Path, **kwargs: Any) -> list[RankResult]:
    return pools.get("newest", 2).run("tests.faults.scenarios.ranks:lossy", timeout=120, folder=str(folder), **kwargs)


def test_strict_raises_the_same_everywhere(pools: Pools, tmp_path: Path) -> None:
    found = values(lossy(pools, tmp_path, settings={}))
    assert {one["error"] for one in found} == {found[0]["error"]}
    kind, text = found[0]["error"]
    assert kind == "LoadIncomplete"
    for part in ("moments fresh", "+ weights", 'dspatch.expect(moments="fresh")', "DSPATCH_MODE=warn"):
        assert part in text


def test_warn_says_it_once_and_goes_on(pools: Pools, tmp_path: Path) -> None:
    results = lossy(pools, tmp_path, settings={"mode": "warn"})
    assert [one["error"] for one in values(results)] == [None, None]
    said = warnings_of(results)
    assert len(said) == 1
    assert said[0].startswith("rank 0")
    assert "moments fresh" in said[0]


def test_observe_only_tells(pools: Pools, tmp_path: Path) -> None:
    results = lossy(pools, tmp_path, settings={"mode": "observe"})
    assert [one["error"] for one in values(results)] == [None, None]
    assert warnings_of(results) == []
    assert any("moments fresh" in text for text in results[0].said(20)), "at INFO"
    assert values(results)[1]["report"]["moments"] == "fresh"


@pytest.mark.parametrize("written", ["call", "variable"])
def test_a_declared_loss_is_fine(pools: Pools, tmp_path: Path, written: str) -> None:
    arguments: dict[str, Any] = (
        {"settings": {}, "expect": {"moments": "fresh"}}
        if written == "call"
        else {"settings": {"expect": "moments=fresh"}}
    )
    results = lossy(pools, tmp_path, **arguments)
    assert [one["error"] for one in values(results)] == [None, None]
    assert "(declared)" in values(results)[0]["table"]
    assert warnings_of(results) == []


def test_a_declaration_covers_no_more_than_it_says(pools: Pools, tmp_path: Path) -> None:
    for one in values(lossy(pools, tmp_path, settings={}, expect={"lr_scheduler": "fresh"})):
        assert one["error"][0] == "LoadIncomplete"


def test_a_declaration_that_does_not_exist_lists_those_that_do(pools: Pools, tmp_path: Path) -> None:
    for one in values(lossy(pools, tmp_path, settings={"expect": "moment=fresh"})):
        assert one["error"][0] == "SettingsError"
        assert "moments=fresh" in one["error"][1]


@pytest.mark.parametrize("level", ["bytes", "structure", "off"])
def test_levels(pools: Pools, tmp_path: Path, level: str) -> None:
    results = lossy(pools, tmp_path, settings={"verify": level})
    for one in values(results):
        if level == "bytes":
            assert one["error"][0] == "LoadIncomplete"
        else:
            assert one["error"] is None
            assert one["report"]["moments"] == "not checked"
    if level != "bytes":
        assert warnings_of(results) == [], "a level that the user chose says nothing new"


def test_the_report_for_programs(pools: Pools, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    values(lossy(pools, tmp_path / "run", settings={"report": str(path), "mode": "warn"}))
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["schema"] == 1
    assert (found["ok"], found["world"], found["request"]["tag"]) == (False, 2, "a")
    assert found["outcomes"]["moments"] == {"outcome": "fresh", "reason": ""}
    assert found["outcomes"]["weights"]["outcome"] == "restored"
    lost = [one for one in found["findings"] if one["component"] == "moments"]
    assert lost[0]["ranks"] == [0, 1]
    assert found["bytes_compared"] > 0
    assert set(found["seconds"]) == {"load", "verdict"}


def test_a_report_that_cannot_be_written_does_not_stop_the_run(pools: Pools, tmp_path: Path) -> None:
    results = lossy(
        pools, tmp_path / "run", settings={"report": str(tmp_path / "no" / "folder.json"), "expect": "moments=fresh"}
    )
    assert [one["error"] for one in values(results)] == [None, None]
    assert any("could not be written" in text for text in warnings_of(results))
