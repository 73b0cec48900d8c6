"""One state is equal to itself, component by component, however it was cut up and converted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dspatch.diff.fragments import read_state
from tests.diff.comparing import diff, same
from tests.diff.conftest import States, convert
from tests.diff.made import values
from tests.support.paths import ROOT

#: Components that every layout of the state holds.
_COMMON = {"frozen", "buffers", "masters", "moments", "optimizer_step", "param_groups", "counters"}

#: At stage 3 weights are kept as masters only.
WEIGHTS = frozenset({"weights"})


def _equal(a: Path, b: Path, without: frozenset[str] = frozenset()) -> None:
    found = diff(a, b)
    assert (found.code, found.relation) == (0, "converted"), (found.data.get("answer"), found.errors)
    assert set(found.unequal) == without & set(found.outcomes), found.data["answer"]
    assert set(found.unequal.values()) <= {"not compared"}
    assert {name for name, outcome in found.outcomes.items() if outcome == "equal"} >= _COMMON - without
    assert (found.data["parameters"], found.data["values"], found.data["damage"]) == ([], [], [])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_another_stage(stage: int, precision: str, states: States) -> None:
    _equal(states(2, precision) / "a", states(stage, precision) / "a", WEIGHTS if stage == 3 else frozenset())


@pytest.mark.parametrize(("stage", "other"), [(2, 2), (3, 3), (2, 3)])
def test_another_number_of_ranks(stage: int, other: int, states: States) -> None:
    _equal(states(stage, world=2) / "a", states(other, world=4) / "a", WEIGHTS if stage != other else frozenset())


def test_old_releases(states: States) -> None:
    # There stage 0 in bf16 partitions its optimizer.
    _equal(states(2, role="oldest") / "a", states(0, role="oldest") / "a")


def test_stage_0_in_fp32_has_masters_in_its_weights(states: States) -> None:
    _equal(states(0, "fp32", model={"tied": True}) / "a", states(3, "fp32", model={"tied": True}) / "a",
           WEIGHTS | {"frozen"})  # fmt: skip


def test_stage_0_is_not_guessed(states: States) -> None:
    # With a frozen bias in front, and no masters to tell by, the first moment of its shape could be that of two parameters.
    found = diff(states(0, "fp32") / "a", states(2, "fp32") / "a")
    assert (found.code, found.relation) == (3, "unknown")
    assert found.unequal == {"masters": "not compared", "moments": "not compared"}
    same(states(0, "fp32") / "a", states(0, "fp32") / "a")


@pytest.fixture(scope="module")
def universal(states: States, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Stage 2 of 4 ranks and stage 3 of 2 ranks, converted."""
    made = tmp_path_factory.mktemp("universal")
    sources = {2: states(2, world=4) / "a", 3: states(3) / "a"}
    targets = {stage: made / f"z{stage}_universal" for stage in sources}
    convert({sources[stage]: target for stage, target in targets.items()})
    return targets


@pytest.mark.parametrize("stage", [2, 3])
def test_a_conversion_is_faithful(stage: int, universal: dict[int, Path], states: States) -> None:
    _equal(states(stage, world=4 if stage == 2 else 2) / "a", universal[stage])


def test_conversions_of_other_stages(universal: dict[int, Path], states: States) -> None:
    _equal(universal[2], states(3) / "a", WEIGHTS)
    _equal(states(2, world=2) / "a", universal[3], WEIGHTS)
    _equal(universal[2], universal[3], WEIGHTS)
    _equal(universal[2], states(0) / "a")


def test_an_unfaithful_conversion(universal: dict[int, Path], states: States, tmp_path: Path) -> None:
    import shutil

    import torch

    broken = shutil.copytree(universal[2], tmp_path / "u")
    file = broken / "zero/last.weight/exp_avg_sq.pt"
    held = torch.load(file)
    held["param"][2, 3] += 1
    torch.save(held, file)
    found = diff(states(2, world=4) / "a", broken)
    assert (found.code, found.relation, found.unequal) == (1, "changed", {"moments": "differs"})
    assert found.data["answer"].startswith("B is no faithful conversion of A: 1 of ")
    assert found.parameters == [("moments", "exp_avg_sq", "last.weight", "differs")]


@pytest.mark.parametrize(
    ("stage", "world", "precision"), [(0, 2, "bf16"), (2, 4, "bf16"), (3, 4, "bf16"), (3, 2, "fp16")]
)
def test_fragments_hold_what_was_saved(stage: int, world: int, precision: str, states: States) -> None:
    import torch

    from dspatch.checkpoint.content import read_bytes

    state = read_state(str(states(stage, precision, world)), "a")
    masters = {name: named for (component, _, name), named in state.tensors.items() if component == "masters"}
    assert len(masters) == 7
    for name, named in masters.items():
        assert named.complete
        raw = b"".join(bytes(read_bytes(one.ref, one.at, one.count)) for one in named.fragments)
        wanted = values(name, 0, named.shape)
        assert raw == wanted.contiguous().view(torch.uint8).numpy().tobytes(), name


@pytest.mark.parametrize(
    ("scenario", "kwargs"),
    [("save_experts", {"ep_size": 2}), ("save_experts", {"ep_size": 2, "stage": 0}), ("save_pipeline", {"stages": 2}),
     ("save_pipeline", {"stages": 2, "stage": 1, "precision": "bf16"})],
)  # fmt: skip
def test_experts_and_pipelines(scenario: str, kwargs: dict[str, Any], pools: Any, tmp_path: Path) -> None:
    import shutil

    module = "tests.checkpoint.saving" if scenario == "save_experts" else "tests.offline.saving"
    for result in pools.get("newest", 2).run(f"{module}:{scenario}", folder=str(tmp_path / "a"), **kwargs):
        assert result.error is None, result.error.traceback
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = same(tmp_path / "a", tmp_path / "b")
    assert {"weights", "moments"} <= set(found.outcomes)
    assert ("experts" in found.outcomes) == (scenario == "save_experts")

    from tests.support.damage import rewrite

    file = next(one for one in sorted((tmp_path / "b").glob("*/*.pt")) if "expert" in one.name or "layer" in one.name)
    rewrite(file, lambda held: held[sorted(held)[0]].view(-1)[0].add_(1))
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.code == 1
    assert len(found.names) == 1


def test_neither_torch_nor_numpy_is_imported_for_equal_tags(states: States) -> None:
    program = (
        "import sys; from dspatch.cli.main import main\n"
        "code = main(['diff', *sys.argv[1:]])\n"
        "heavy = {'torch', 'deepspeed', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert code == 0, code\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(states(2) / "a"), str(states(3) / "a")],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the same state in another layout, bit for bit" in done.stdout


def test_partitions_in_another_order_are_compared_by_place(states: States) -> None:
    # Under round_robin_gradients no list in the files tells the order, so only the same layout can be compared.
    turned = states(2, zero={"round_robin_gradients": True})
    found = same(turned / "a", turned / "a")
    assert {"masters", "moments"} <= set(found.outcomes)
    assert diff(turned / "a", turned / "later").relation == "later"
    found = diff(states(2) / "a", turned / "a")
    assert (found.code, found.relation) == (3, "unknown")
    assert found.unequal == {"masters": "not compared", "moments": "not compared"}


@pytest.mark.parametrize("more", [{"offload": "cpu"}, {"hpz": 2}, {"zero": {"sub_group_size": 100}}], ids=str)
def test_other_forms_of_stage_3(more: dict[str, Any], states: States) -> None:
    _equal(states(2) / "a", states(3, **more) / "a", WEIGHTS)
