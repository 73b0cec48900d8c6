"""Faults of the catalogue, without dspatch, with it in each mode, and with the patch that repairs them off."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.cases import CASES, Case
from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of

SCENARIOS = "tests.faults.scenarios.loading:"

Saved = Callable[..., Path]


@pytest.fixture(scope="module")
def saved(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    """A checkpoint folder of an engine, saved once for all tests of this file that do not harm it."""
    folders: dict[str, Path] = {}

    def folder_of(engine: Any, role: str = "newest", ranks: int = 2, **arguments: Any) -> Path:
        key = repr((engine, role, ranks, arguments))
        if key not in folders:
            folder = tmp_path_factory.mktemp("saved")
            values(pools.get(role, ranks).run(SCENARIOS + "save", timeout=120, folder=str(folder), engine=engine,
                                              tags=["a"], arguments=arguments))  # fmt: skip
            folders[key] = folder
        return folders[key]

    yield folder_of


def ran(
    pools: Pools, saved: Saved, tmp_path: Path, case: Case, settings: dict[str, Any] | None, probe: bool = False
) -> list[RankResult]:
    """The results of loading the case's files into its engine; ``settings`` None leaves dspatch out."""
    folder = saved(case.saved, case.saver or case.role, case.ranks, **case.save)
    if case.harm is not None:
        folder = Path(shutil.copytree(folder, tmp_path / f"harmed{len(list(tmp_path.iterdir()))}"))
        case.harm(folder / "a")
    return pools.get(case.role, case.ranks).run(
        SCENARIOS + "load", timeout=120, folder=str(folder), engine=case.now or case.saved, settings=settings,
        arguments=dict(case.arguments), probe=probe,
    )  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize("name", CASES)
def test_upstream_says_nothing(pools: Pools, saved: Saved, tmp_path: Path, name: str) -> None:
    """The release has the fault: it reports success, or raises what the case says."""
    case = CASES[name]
    for one in values(ran(pools, saved, tmp_path, case, None, probe=case.undone)):
        if case.upstream:
            assert one["error"] is not None
            assert one["error"][0] == case.upstream
            continue
        assert (one["error"], bool(one["path"])) == (None, True), "upstream reports success"
        assert bool(one["moved"]) == case.undone


@pytest.mark.parametrize("name", CASES)
def test_what_upstream_does_not_say(pools: Pools, saved: Saved, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    results = ran(pools, saved, tmp_path, case, {}, probe=not case.raises)
    found = values(results)
    assert {one["error"] for one in found} == {found[0]["error"]}, "the same on all ranks"
    if not case.raises:
        assert found[0]["error"] is None, found[0]["error"]
        assert [one["moved"] for one in found] == [[]] * case.ranks
        said = warnings_of(results)
        assert len(said) == 1, said
        assert [text for text in case.says if text not in said[0]] == [], said[0]
        return
    assert found[0]["error"] is not None
    assert found[0]["error"][0] == case.raises, found[0]["error"][1]
    told = "\n".join((found[0]["error"][1], *found[0]["notes"]))
    assert [text for text in case.says if text not in told] == [], told
    if case.raises == "LoadRefused":
        assert [one["changed"] for one in found] == [[]] * case.ranks, "untouched"


@pytest.mark.whole
@pytest.mark.parametrize("mode", ["warn", "observe"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.upstream])
def test_in_other_modes_it_is_said(pools: Pools, saved: Saved, tmp_path: Path, name: str, mode: str) -> None:
    case = CASES[name]
    results = ran(pools, saved, tmp_path, case, {"mode": mode})
    assert [one["error"] for one in values(results)] == [None] * case.ranks
    said = warnings_of(results) if mode == "warn" else [text for one in results for text in one.said(20)]
    assert bool(warnings_of(results)) == (mode == "warn")
    for text in case.says:
        assert any(text in one for one in said), said


@pytest.mark.whole
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.disable])
def test_without_its_repair_it_is_loud(pools: Pools, saved: Saved, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    results = ran(pools, saved, tmp_path, case, {"disable": case.disable})
    said = [one["error"][1] for one in values(results) if one["error"]] or warnings_of(results)
    assert said
    assert any(case.loud in text for text in said), said


@pytest.mark.whole
@pytest.mark.parametrize("name", CASES)
def test_its_twin_is_silent(pools: Pools, saved: Saved, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    was, now, arguments = case.twin or (case.saved, case.saved, {})
    twin = Case(was, now, arguments, save=case.save if case.twin else {}, role=case.role, ranks=case.ranks)
    results = ran(pools, saved, tmp_path, twin, {}, probe=True)
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert set(one["report"].values()) == {"restored"}, one["report"]
        assert one["moved"] == []
    assert warnings_of(results) == []


def loaded(
    pools: Pools, folder: Path, saved: dict[str, Any], now: dict[str, Any], settings: dict[str, Any] | None,
    role: str = "newest", **kwargs: Any,
) -> list[RankResult]:  # fmt: skip
    pool = pools.get(role, 2)
    if not (folder / "a").exists():
        values(pool.run(SCENARIOS + "save", timeout=120, folder=str(folder), engine=saved, tags=["a"]))
    return pool.run(SCENARIOS + "load", timeout=120, folder=str(folder), engine=now, settings=settings, **kwargs)


HEALTHY: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "A6 at stage 2": ({"stage": 2}, {"stage": 2}, {"load_optimizer_states": False}),
    "D8 amsgrad": ({"stage": 3, "optimizer": "amsgrad"}, {"stage": 3, "optimizer": "amsgrad"}, {}),
    "D8 torch's Adam for DeepSpeed's": ({"stage": 2, "optimizer": "config:AdamW"}, {"stage": 2, "optimizer": "adamw"}, {}),
    "offload switched on": ({"stage": 2}, {"stage": 2, "offload": "cpu"}, {}),
    "offload switched off at stage 3": ({"stage": 3, "offload": "cpu", "param_offload": "cpu"}, {"stage": 3}, {}),
}  # fmt: skip


@pytest.mark.parametrize("twin", HEALTHY)
def test_twins_are_let_through(pools: Pools, tmp_path: Path, twin: str) -> None:
    saved, now, arguments = HEALTHY[twin]
    results = loaded(pools, tmp_path, saved, now, {}, arguments=arguments, probe=True)
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert one["moved"] == []
        asked = {name: said for name, said in one["report"].items() if said != "left out"}
        assert set(asked.values()) == {"restored"}
    said = warnings_of(results)
    assert len(said) == (1 if arguments else 0)


@pytest.mark.parametrize("stage", [0, 2])
@pytest.mark.parametrize("copies", [True, False])
def test_a_custom_load_fn_is_measured(pools: Pools, tmp_path: Path, stage: int, copies: bool) -> None:
    """E2."""
    pool, engine = pools.get("newest", 2), {"stage": stage, "precision": "fp32"}
    values(pool.run(SCENARIOS + "save", folder=str(tmp_path), engine=engine, tags=["a"]))
    arguments = {"folder": str(tmp_path), "engine": engine, "copies": copies}
    for one in values(pool.run(SCENARIOS + "load_with_own_function", settings=None, **arguments)):
        assert one["error"] is None, "upstream trusts the function"
    for one in values(pool.run(SCENARIOS + "load_with_own_function", settings={}, **arguments)):
        if copies:
            assert one["error"] is None
        else:
            assert one["error"][0] == "LoadIncomplete"
            assert "weights mismatch" in one["error"][1]
            assert "last.weight" in one["error"][1]


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("excluded", [True, False])
def test_frozen_weights_that_were_not_saved(pools: Pools, tmp_path: Path, stage: int, excluded: bool) -> None:
    """E3: they keep their initial values under load_module_strict=False, which is usual with adapters."""
    pool, engine = pools.get("newest", 2), {"stage": stage, "model": {"frozen": True}}
    arguments = {"exclude_frozen_parameters": True} if excluded else {}
    values(pool.run(SCENARIOS + "save", folder=str(tmp_path), engine=engine, tags=["a"], arguments=arguments))
    results = loaded(pools, tmp_path, engine, engine, {}, arguments={"load_module_strict": False})
    assert [one["error"] for one in values(results)] == [None, None]
    said = warnings_of(results)
    assert len(said) == excluded
    assert all("frozen: left out" in text and "first.weight" in text for text in said)
