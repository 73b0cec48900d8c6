"""Stage, number of ranks or precision changed between save and load: refused with the way out, or loaded and right."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of
from tests.support.trees import tree

SCENARIOS = "tests.faults.scenarios.loading:"
WEIGHTS_ONLY = {"load_optimizer_states": False, "load_lr_scheduler_states": False}
ROLES = [pytest.param("oldest", marks=pytest.mark.whole), "newest"]


def moved(
    pools: Pools, folder: Path, was: dict[str, Any], now: dict[str, Any], ranks: tuple[int, int] = (2, 2),
    role: str = "newest", **kwargs: Any,
) -> list[RankResult]:  # fmt: skip
    values(pools.get(role, ranks[0]).run(SCENARIOS + "save", timeout=120, folder=str(folder), engine=was, tags=["a"]))
    return pools.get(role, ranks[1]).run(
        SCENARIOS + "load", timeout=120, folder=str(folder), engine=now, **{"settings": {}, "probe": True, **kwargs}
    )


def refusal(results: list[RankResult]) -> str:
    found = values(results)
    assert {one["error"] for one in found} == {found[0]["error"]}
    assert found[0]["error"] is not None, found[0]["table"]
    assert found[0]["error"][0] == "LoadRefused", found[0]["error"]
    assert [one["changed"] for one in found] == [[]] * len(found), "untouched"
    return str(found[0]["error"][1])


def restored(results: list[RankResult]) -> None:
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert set(one["report"].values()) == {"restored"}
        assert one["moved"] == []
    assert warnings_of(results) == []


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("was", "now", "way"),
    [(0, 3, "zero_to_fp32.py"), (1, 3, "zero_to_fp32.py"), (3, 1, "zero_to_fp32.py"), (3, 0, "zero_to_fp32.py"),
     (2, 0, "zero_optimization.stage to 2 or 1"), (1, 0, "zero_optimization.stage to 1 or 2"),
     (0, 2, "load_optimizer_states=False")],
)  # fmt: skip
def test_another_stage(pools: Pools, tmp_path: Path, role: str, was: int, now: int, way: str) -> None:
    # In fp32 no release puts another optimizer in the place of stage 0.
    engines = ({"stage": stage, "precision": "fp32"} for stage in (was, now))
    text = refusal(moved(pools, tmp_path, *engines, role=role))
    assert "the ZeRO stage changed" in text
    assert way in text


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("was", "now"), [(1, 2), (2, 1)])
def test_stages_1_and_2_are_one(pools: Pools, tmp_path: Path, role: str, was: int, now: int) -> None:
    restored(moved(pools, tmp_path, {"stage": was}, {"stage": now}, role=role))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("back", [False, True])
def test_bf16_optimizer_and_stage_1_read_each_other(pools: Pools, tmp_path: Path, role: str, back: bool) -> None:
    """One writes padded masters and no loss scale, the other lean masters and a static scale."""
    engines = [{"stage": 1, "config": {"data_types": {"grad_accum_dtype": "fp32"}}}, {"stage": 1}]
    was, now = reversed(engines) if back else engines
    restored(moved(pools, tmp_path, was, now, role=role))


@pytest.mark.parametrize(
    ("stage", "was", "now"),
    [(2, "bf16", "fp16"), (2, "fp16", "bf16"), (2, "fp32", "bf16"), (3, "bf16", "fp32"), (3, "fp16", "bf16"),
     (0, "bf16", "fp32"), (0, "fp32", "bf16"), (0, "fp32", "fp16")],
)  # fmt: skip
def test_another_precision(pools: Pools, tmp_path: Path, stage: int, was: str, now: str) -> None:
    engines = ({"stage": stage, "precision": precision} for precision in (was, now))
    text = refusal(moved(pools, tmp_path, *engines))
    assert "the precision changed" in text
    assert f"of a {now} run" in text
    assert f"of a {was} run" in text
    assert "load_optimizer_states=False" in text


@pytest.mark.parametrize("stage", [2, 3])
def test_a_precision_with_the_same_masters(pools: Pools, tmp_path: Path, stage: int) -> None:
    results = moved(pools, tmp_path, {"stage": stage, "precision": "fp32"}, {"stage": stage, "precision": "fp16"})
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert set(one["report"].values()) == {"restored"}
        assert one["moved"] == []
    said = warnings_of(results)
    assert len(said) == 1, "the static scale of the fp32 run replaces the dynamic one (A11)"
    assert "loss scaler dynamic: True was configured, False is in force" in said[0]


def test_at_stage_0_every_rank_reads_the_same_file(pools: Pools, tmp_path: Path) -> None:
    restored(moved(pools, tmp_path / "1", {"stage": 0}, {"stage": 0}, (1, 2)))
    restored(moved(pools, tmp_path / "2", {"stage": 0}, {"stage": 0}, (2, 1)))


@pytest.mark.parametrize(("stage", "ranks"), [(2, (2, 1)), (2, (1, 2)), (3, (2, 1)), (3, (1, 2))])
def test_another_number_of_ranks(pools: Pools, tmp_path: Path, stage: int, ranks: tuple[int, int]) -> None:
    text = refusal(moved(pools, tmp_path, {"stage": stage}, {"stage": stage}, ranks))
    assert f"load with {ranks[0]} ranks" in text
    assert ("load_optimizer_states=False" in text) == (stage == 2 or ranks[1] < ranks[0])


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("stage", "now"), [(2, 2), (1, 2), (3, 3)])
def test_the_conversion_that_the_error_names_works(
    pools: Pools, tmp_path: Path, role: str, stage: int, now: int
) -> None:
    text = refusal(moved(pools, tmp_path, {"stage": stage}, {"stage": now}, (2, 1), role=role))
    command = re.search(r"or convert: python (.*)", text)
    assert command
    found = tree(role)
    done = subprocess.run(
        [sys.executable, *shlex.split(command[1])], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": str(found.path), "DS_ACCELERATOR": "cpu", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    engine = {"stage": now, "config": {"checkpoint": {"load_universal": True}}}
    results = pools.get(role, 1).run(
        SCENARIOS + "load", timeout=60, folder=str(tmp_path), engine=engine, settings={}, tag="a_universal"
    )
    for one in values(results):
        assert one["error"] is None
        assert one["steps"] == 3
        assert one["report"]["moments"] == "not checked", "there is no reader for universal checkpoints yet"


@pytest.mark.parametrize(
    ("was", "now", "ranks"),
    [({"stage": 0}, {"stage": 2}, (2, 2)), ({"stage": 2}, {"stage": 2}, (2, 1)), ({"stage": 2}, {"stage": 2}, (1, 2)),
     ({"stage": 2}, {"stage": 2, "precision": "fp16"}, (2, 2)), ({"stage": 0}, {"stage": 0, "precision": "fp32"}, (2, 2)),
     ({"stage": 3}, {"stage": 3, "precision": "fp16"}, (2, 2)), ({"stage": 3}, {"stage": 3}, (2, 1))],
)  # fmt: skip
def test_the_weights_alone(
    pools: Pools, tmp_path: Path, was: dict[str, Any], now: dict[str, Any], ranks: tuple[int, int]
) -> None:
    results = moved(pools, tmp_path, was, now, ranks, arguments=WEIGHTS_ONLY)
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert one["moved"] == []
        # At stage 3 they are put together from all shards, and this rank's own is not there under its name.
        assert one["report"]["weights"] == ("restored" if was["stage"] < 3 else "not checked")
    assert any("partial load" in text for text in warnings_of(results))
