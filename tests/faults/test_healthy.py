"""Every kind of engine, saved and resumed under the guard: no finding, no WARNING, and the losses of the run that went on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.kinds import FAMILIES, SPECIAL, arguments
from tests.support.pool import Pools
from tests.support.results import values, warnings_of

#: Before the save; ``resume`` of tests.faults.scenarios.healthy.
STEPS = 3

#: What cannot be compared for a reason, which is the one WARNING: an elastic checkpoint holds no hyperparameters. The
#: schedule sets the learning rate, so that the same configuration goes on as the same run.
UNCHECKED = {"elastic": {"param_groups": "not checked (an elastic checkpoint holds no hyperparameters)"}}

CASES = [(kind, role) for kind in FAMILIES for role in ("newest", "oldest")] + [(kind, "newest") for kind in SPECIAL]


@pytest.mark.parametrize(("kind", "role"), CASES)
def test_a_resume_is_silent_and_the_same_run(pools: Pools, tmp_path: Path, kind: str, role: str) -> None:
    results = pools.get(role, 2).run(
        "tests.faults.scenarios.healthy:resume", timeout=120, folder=str(tmp_path), saved=arguments(kind)
    )
    for one in values(results):
        assert one["findings"] == []
        assert one["skipped"] == (STEPS if kind.startswith("overflow") else 0)
        odd = {name: said for name, said in one["outcomes"].items() if said != "restored"}
        assert odd == UNCHECKED.get(kind, {})
        assert one["resumed"] == one["losses"], "bit for bit"
        assert one["moved"] == []
    assert len(warnings_of(results)) == len(UNCHECKED.get(kind, {}))
