"""What the verdict costs a load: <= 1.15 x plain DeepSpeed and 1.02 x its memory, 1.02 x at DSPATCH_VERIFY=structure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pool import Pools
from tests.support.results import values

_TARGETS = {"full": 1.15, "structure": 1.02}


@pytest.mark.parametrize("stage", [2, 3])
def test_load(pools: Pools, tmp_path: Path, stage: int) -> None:
    levels = ["full", "bytes", "structure"]
    found = values(
        pools.get("newest", 2).run(
            "tests.benchmarks.loads:compare",
            timeout=900,
            folder=str(tmp_path / "run"),
            stage=stage,
            levels=levels,
            rounds=7,
        )
    )[0]
    assert found["megabytes"] >= 600
    plain = found["plain"]
    print(f"\nZeRO-{stage}, 2 ranks, {found['megabytes']:.0f} MB of shards: plain load {plain['seconds']:.3f} s")
    for name in levels:
        one = found[name]
        target = f"  (target {_TARGETS[name]:.2f})" if name in _TARGETS else ""
        print(
            f"  {name:<10} {one['seconds']:.3f} s = {one['seconds'] / plain['seconds']:.3f} x plain{target};"
            f" best {one['best'] / plain['best']:.3f} x; peak memory {one['peak'] / plain['peak']:.3f} x"
        )
