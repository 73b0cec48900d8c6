"""The ends of the catalogue's ranges, run: releases inside have the fault, those just outside have not.

A release has a fault of state when a load under dspatch in the mode ``observe``, with every repair off, reports that state
was lost, or when its shards lack what they must hold; it has a fault that is loud when that very error is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dspatch.patching.matrix import load
from tests.faults.cases import CASES, WEIGHTS, Case
from tests.support import trees
from tests.support.fault_table import has
from tests.support.pool import Pools, RankPool
from tests.support.results import values

LOADING, SPLIT = "tests.faults.scenarios.loading:", "tests.faults.scenarios.uncovered:"

#: Every patch that changes what a load restores.
REPAIRS = ",".join(row.id for row in load().rows if row.does == "repairs")

BF16_OPTIMIZER = {"data_types": {"grad_accum_dtype": "fp32"}}


@dataclass(frozen=True)
class Probe:
    """How to see whether a release has a fault.

    Attributes:
        case: what is saved and loaded.
        kind: of ``uncovered:save_split``, with ``made``; empty: ``case``.
        made: arguments of the engine there.
        trained: a step is taken before the save.
        arguments: of the load there.
        raises: class of the error that is the fault, on any rank; empty: lost state.
        absent: files of the tag folder that a release with the fault does not write.
        ranks: of both runs.
        trust: torch's default for reading is left on.
    """

    case: Case = field(default_factory=lambda: Case({}))
    kind: str = ""
    made: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)
    raises: str = ""
    absent: str = ""
    ranks: int = 2
    trust: bool = False


PROBES: dict[str, Probe] = {
    "A4": Probe(Case({"stage": 0})),
    "A5": Probe(Case({"stage": 1, "config": BF16_OPTIMIZER}), absent="*optim_states.pt"),
    "A7": Probe(Case({"stage": 2}, arguments=WEIGHTS)),
    "A12": Probe(Case({"stage": 0}), raises="TypeError"),
    "A13": Probe(kind="mics", trained=False, raises="TypeError"),
    "A15": Probe(kind="pipeline", made={"stages": 2, "stage": 0, "precision": "bf16"}, trained=False, raises="KeyError"),
    "A16": Probe(kind="experts", made={"ep_size": 2, "stage": 0, "precision": "fp32"}, raises="KeyError"),
    "D3": Probe(CASES["D3 unfrozen"]),
    "D10": Probe(kind="experts", made={"ep_size": 2, "stage": 1, "config": BF16_OPTIMIZER}, trained=False, ranks=4,
                 arguments={"load_optimizer_states": False}, raises="IndexError"),
    "E7": Probe(kind="experts", made={"ep_size": 2, "outside": True}, arguments={"load_optimizer_states": False},
                raises="RuntimeError"),
    "G6": Probe(Case({"stage": 3, "hpz": 2})),
    "G16": Probe(Case({"stage": 2}), raises="UnpicklingError", trust=True),
    **{name.partition(" ")[0]: Probe(case) for name, case in reversed(CASES.items()) if not case.upstream
       and name.partition(" ")[0] in ("A2", "D1", "D2", "E4", "F2", "F9")},
    "D8": Probe(CASES["D8 Adam"]),
}  # fmt: skip

ENDS = [(fault, version) for fault in load().faults for version in fault.ran]


@pytest.mark.ranges
@pytest.mark.parametrize(("fault", "version"), ENDS, ids=lambda one: getattr(one, "id", one))
def test_a_release_has_it_or_not(pools: Pools, tmp_path: Path, fault: Any, version: str) -> None:
    probe = PROBES[fault.id]
    tree = trees.release(version)
    environ: dict[str, str | None] = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": None} if probe.trust else {}
    pool = pools.get(tree, probe.ranks, env=environ)
    found = (_of_split if probe.kind else _of_case)(pool, tmp_path, probe)
    assert found == has(fault, version), f"{fault.id} in {version}"


def test_every_end_has_a_probe() -> None:
    assert {fault.id for fault, _ in ENDS} <= set(PROBES)


def _of_case(pool: RankPool, folder: Path, probe: Probe) -> bool:
    case = probe.case
    values(pool.run(LOADING + "save", timeout=120, folder=str(folder), engine=case.saved, tags=["a"],
                    arguments=dict(case.save)))  # fmt: skip
    if probe.absent:
        return not list((folder / "a").glob(probe.absent))
    if case.harm is not None:
        case.harm(folder / "a")
    found = values(
        pool.run(
            LOADING + "load", timeout=120, folder=str(folder), engine=case.now or case.saved,
            arguments=dict(case.arguments), settings={"mode": "observe", "disable": REPAIRS},
        )
    )  # fmt: skip
    errors = [one["error"][0] if one["error"] else "" for one in found]
    if probe.raises:
        return probe.raises in errors
    if any(errors):
        return False
    return any({"fresh", "mismatch", "absent"} & set(one["report"].values()) for one in found)


def _of_split(pool: RankPool, folder: Path, probe: Probe) -> bool:
    values(pool.run(SPLIT + "save_split", timeout=120, folder=str(folder), kind=probe.kind, trained=probe.trained,
                    **probe.made))  # fmt: skip
    found = values(pool.run(SPLIT + "load_split", timeout=120, folder=str(folder), kind=probe.kind, settings=None,
                            arguments=dict(probe.arguments), probe=False, **probe.made))  # fmt: skip
    return any(one["error"] is not None and one["error"][0] == probe.raises for one in found)
