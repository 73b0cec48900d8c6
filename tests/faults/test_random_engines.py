"""Random engines: a healthy load is silent, and one random bit, in a file or in the live state, is found."""

from __future__ import annotations

import tempfile
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.pool import Pools
from tests.support.results import values, warnings_of

#: Each takes most of a second.
EXAMPLES = 40

MODELS = st.fixed_dictionaries(
    {"width": st.integers(1, 9), "depth": st.integers(2, 4)},
    optional={"tied": st.just(True), "frozen": st.just(True), "unused": st.just(True), "checkpointing": st.just(True)},
)


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    """Keyword arguments of ``build_engine`` that DeepSpeed can build, save and load."""
    stage = draw(st.sampled_from([0, 1, 2, 3]))
    made: dict[str, Any] = {
        "stage": stage,
        "precision": draw(st.sampled_from(["bf16", "fp16", "fp32"])),
        "optimizer": draw(st.sampled_from(["adamw", "adam", "amsgrad", "sgd", "sgd_momentum", "rmsprop", "lion"])),
        "groups": draw(st.sampled_from([1, 2])),
        "scheduler": draw(st.sampled_from([None, "warmup", "warmup_decay"])),
        "model": draw(MODELS),
    }
    if stage and draw(st.booleans()):
        made["offload"] = "cpu"
    if stage == 3:
        made["zero"] = {
            "stage3_param_persistence_threshold": draw(st.sampled_from([0, 10, 10_000])),
            "sub_group_size": draw(st.sampled_from([50, 10**9])),
        }
    return made


# Without shrinking, which would save and load hundreds of engines: an engine is small and named in full as it is.
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    engine=engines(),
    world=st.sampled_from([2, 2, 3]),
    steps=st.integers(1, 3),
    where=st.sampled_from(["", "file", "live"]),
    place=st.floats(0, 1),
    bit=st.integers(0, 7),
)
def test_random_engines(
    pools: Pools, engine: dict[str, Any], world: int, steps: int, where: str, place: float, bit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = pools.get("newest", world).run(
            "tests.faults.scenarios.random_engine:load", timeout=90, folder=folder, saved=engine, steps=steps,
            where=where, place=place, bit=bit,
        )  # fmt: skip
    found = values(results)
    if any(one["harmed"] for one in found):
        assert {one["error"] for one in found} <= {"LoadIncomplete", "LoadRefused"}, found
    else:
        assert [(one["error"], one["lost"]) for one in found] == [(None, [])] * world, found[0]["text"]
        assert warnings_of(results) == []
