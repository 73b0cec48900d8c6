"""Every kind of change is named exactly; what has not changed is not. `test_equal` and each first line have the twins."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.diff.comparing import diff, same
from tests.diff.conftest import States
from tests.diff.editing import rewrite, set_tensor
from tests.diff.made import values
from tests.support import damage
from tests.support.pool import Pools
from tests.support.results import values as results

Copied = Callable[[Path], Path]

TRAINED = {"middle.0.weight", "last.weight", "norm.weight", "norm.bias", "middle.0.bias", "middle.1.bias", "last.bias"}
_SHARD = ("optimizer_state_dict",)


def _masters(stage: int) -> tuple[str, ...]:
    return (*_SHARD, "single_partition_of_fp32_groups" if stage < 3 else "fp32_flat_groups")


def _state(stage: int, group: int, key: str) -> tuple[Any, ...]:
    return (*_SHARD, "base_optimizer_state" if stage < 3 else "optimizer_state_dict", "state", group, key)


@pytest.mark.parametrize(("stage", "precision"), [(0, "bf16"), (2, "bf16"), (3, "bf16"), (2, "fp16")])
def test_a_later_tag_is_what_the_first_became(stage: int, precision: str, states: States) -> None:
    folder = states(stage, precision)
    found = diff(folder / "a", folder / "later")
    assert (found.code, found.relation, found.data["steps"], found.data["doubts"]) == (1, "later", 2, [])
    assert found.data["correlation"] > 0.99
    tensors = {name: one for name, one in found.data["components"].items() if one["tensors"]}
    assert {name for name, one in tensors.items() if one["outcome"] == "equal"} == (
        {"frozen"} if stage else set()
    )  # at stage 0 no file says which weights are trained
    assert {one["name"] for one in found.data["parameters"] if one["component"] == "masters"} == TRAINED
    assert {one["component"] for one in found.data["values"]} >= {"optimizer_step", "counters"}
    # Both with --tag-a and --tag-b, and the other way round.
    back = diff(folder, folder, "--tag-a", "later", "--tag-b", "a")
    assert (back.code, back.relation, back.data["steps"], back.data["doubts"]) == (1, "earlier", -2, [])
    assert back.names == found.names


def test_a_later_tag_of_another_layout(states: States) -> None:
    found = diff(states(2) / "a", states(3, world=4) / "later")
    assert (found.relation, found.data["doubts"]) == ("later", [])
    assert found.outcomes["weights"] == "not compared"


def test_another_run(states: States) -> None:
    found = diff(states(2) / "a", states(2, seed=1) / "later")
    assert (found.code, found.relation) == (1, "other run")
    assert abs(found.data["correlation"]) < 0.3
    assert diff(states(2) / "a", states(2, seed=1) / "a").relation == "other run"


def test_moments_that_began_anew(states: States, copied: Copied) -> None:
    folder = copied(states(2))
    assert diff(states(2) / "a", folder / "later").data["doubts"] == []
    for rank in (0, 1):
        for group in (0, 1):
            set_tensor(damage.shard(folder / "later", rank), _state(2, group, "step"), lambda one: one * 0 + 1)
    found = diff(states(2) / "a", folder / "later")
    assert found.relation == "later"
    assert "with doubts" in found.data["answer"]
    (doubt,) = found.data["doubts"]
    assert "the optimizer counts 0 steps in between, the engine 2" in doubt


def test_doubts_about_values(states: States, copied: Copied) -> None:
    folder = copied(states(2))

    def leap(one: torch.Tensor) -> torch.Tensor:
        one[7] += 5.0
        return one

    def broken(one: torch.Tensor) -> torch.Tensor:
        one[3] = float("nan")
        return one

    shard = damage.shard(folder / "later", 1)
    set_tensor(shard, (*_masters(2), 1), leap)
    set_tensor(shard, _state(2, 1, "exp_avg"), broken)
    set_tensor(folder / "later/mp_rank_00_model_states.pt", ("module", "first.bias"), lambda one: one + 1)
    found = diff(states(2) / "a", folder / "later")
    assert found.relation == "later"
    doubts = "\n".join(found.data["doubts"])
    assert "not trained have changed (first.bias)" in doubts
    assert "became NaN or infinite (middle.0.bias)" in doubts
    # Rank 1 begins with the last 13 of the 17 elements of this bias.
    assert "middle.0.bias moved by 5 at element 11" in doubts
    assert found.parameter("moments", "middle.0.bias", "exp_avg")["not_finite_b"] == 1


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("world", [2, 4])
def test_one_changed_element(stage: int, world: int, states: States, copied: Copied) -> None:
    whole, folder = states(stage, world=world) / "a", copied(states(stage, world=world)) / "a"
    same(whole, folder)

    def change(one: torch.Tensor) -> torch.Tensor:
        one[0] += 0.25
        return one

    set_tensor(damage.shard(folder, 1), (*_masters(stage), 0), change)
    found = diff(whole, folder)
    assert (found.code, found.relation, found.unequal) == (1, "changed", {"masters": "differs"})
    assert found.parameters == [("masters", "", "middle.0.weight", "differs")]
    one = found.parameter("masters", "middle.0.weight")
    # Group 0 is (17, 17) and (5, 17): stage 2 cuts the whole of it, stage 3 each parameter; rank 1 begins here.
    first = -(-(289 + 85) // (2 * world)) * 2 if stage == 2 else -(-289 // world)
    assert (one["differing"], one["first"], one["at"]) == (1, first, first)
    assert one["largest"] == pytest.approx(0.25, rel=1e-6)
    before = values("middle.0.weight", 0, (17, 17)).reshape(-1)
    after = before.clone()
    after[one["first"]] += 0.25
    assert one["norm_ratio"] == pytest.approx(float(after.norm() / before.norm()), rel=1e-5)
    assert found.data["damage"] == []


def test_the_place_of_a_changed_moment(states: States, copied: Copied) -> None:
    whole, folder = states(0) / "a", copied(states(0)) / "a"
    same(whole, folder)
    keys = ("optimizer", "optimizer_state_dict", "state", 1, "exp_avg_sq")
    set_tensor(folder / "mp_rank_00_model_states.pt", keys, lambda one: one + torch.eye(5, 17))
    found = diff(whole, folder)
    assert found.parameters == [("moments", "exp_avg_sq", "last.weight", "differs")]
    assert found.parameter("moments", "last.weight", "exp_avg_sq")["differing"] == 5


def test_a_flipped_bit_is_told_from_another_value(states: States, copied: Copied) -> None:
    whole, folder = states(2) / "a", copied(states(2)) / "a"
    same(whole, folder)
    record = damage.flip_bit(damage.shard(folder, 0), position=0.5, bit=6).split("/", 1)[1]
    found = diff(whole, folder)
    assert found.relation == "changed"
    assert len(found.names) == 1
    (said,) = found.data["damage"]
    assert (
        said
        == f"B: bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt was changed after it was written: the checksum of {record} differs"
    )
    assert said in found.data["doubts"]


@pytest.mark.parametrize("stage", [2, 3])
def test_swapped_shards(stage: int, states: States, copied: Copied, pools: Pools) -> None:
    folder = copied(states(stage, world=4))
    whole = states(stage, world=4)
    same(whole / "a", folder / "a")
    damage.swap_shards(folder / "a", 1, 2)
    found = diff(whole / "a", folder / "a")
    assert (found.code, found.relation) == (1, "changed")
    assert found.unequal == {"masters": "differs", "moments": "differs"}
    told = results(
        pools.get("newest", 4).run("tests.diff.saving:masters_that_differ", one=str(whole), other=str(folder))
    )[0]
    named = {one["name"] for one in found.data["parameters"] if one["component"] == "masters"}
    assert named == {name for name in told if name in TRAINED}
    if stage == 2:
        # Their own lists of pieces tell on them; at stage 3 shards have none.
        assert named < TRAINED
        assert any("rank" in one for one in found.data["damage"])


def test_a_renamed_parameter(states: States, copied: Copied) -> None:
    folder = copied(states(2)) / "a"
    same(states(2) / "a", folder)

    def rename(tree: dict[str, Any]) -> None:
        for names in (tree["module"], *tree["param_shapes"]):
            if "last.bias" in names:
                names["head.bias"] = names.pop("last.bias")

    rewrite(folder / "mp_rank_00_model_states.pt", rename)
    found = diff(states(2) / "a", folder)
    assert (found.code, found.relation) == (1, "other model")
    assert "renamed: last.bias -> head.bias" in found.data["answer"]
    assert found.parameters == [
        ("masters", "", "last.bias", "renamed"), ("moments", "exp_avg", "last.bias", "renamed"),
        ("moments", "exp_avg_sq", "last.bias", "renamed"), ("weights", "", "last.bias", "renamed"),
    ]  # fmt: skip
    assert {one["note"] for one in found.data["parameters"]} == {"head.bias"}


def test_a_reshaped_parameter(states: States, copied: Copied) -> None:
    folder = copied(states(2)) / "a"

    def reshape(tree: dict[str, Any]) -> None:
        tree["module"]["last.weight"] = tree["module"]["last.weight"].reshape(17, 5)
        tree["param_shapes"][0]["last.weight"] = torch.Size((17, 5))

    rewrite(folder / "mp_rank_00_model_states.pt", reshape)
    found = diff(states(2) / "a", folder)
    assert (found.relation, found.names) == ("other model", {"last.weight"})
    assert {one["outcome"] for one in found.data["parameters"]} == {"reshaped"}
    one = found.parameter("masters", "last.weight")
    assert (one["shape_a"], one["shape_b"], one["note"]) == ([5, 17], [17, 5], "the same bytes in another shape")


def test_a_parameter_that_only_one_side_has(states: States, copied: Copied) -> None:
    folder = copied(states(2)) / "a"
    rewrite(folder / "mp_rank_00_model_states.pt", lambda tree: tree["module"].pop("last.bias"))
    found = diff(states(2) / "a", folder)
    assert (found.code, found.relation, found.unequal) == (1, "other model", {"weights": "differs"})
    assert found.parameters == [("weights", "", "last.bias", "only in A")]
    assert diff(folder, states(2) / "a").parameters == [("weights", "", "last.bias", "only in B")]


def test_another_precision(states: States) -> None:
    found = diff(states(2, "bf16") / "a", states(2, "fp16") / "a")
    assert found.unequal == {"weights": "differs", "frozen": "differs"}
    one = found.parameter("weights", "last.weight")
    assert (one["outcome"], one["dtype_a"], one["dtype_b"]) == ("other dtype", "bfloat16", "float16")
    exact = values("last.weight", 0, (5, 17))
    assert one["largest"] == float((exact.bfloat16().double() - exact.half().double()).abs().max())


def test_values(states: States, copied: Copied) -> None:
    client = {"client": {"epoch": 3, "seen": {"a": [1, 2]}}, "scheduler": "warmup"}
    folder = copied(states(2, **client)) / "a"
    same(states(2, **client) / "a", folder)

    def change(tree: dict[str, Any]) -> None:
        tree["seen"]["a"][1] = float("nan")
        tree["lr_scheduler"]["last_batch_iteration"] = 7
        tree["global_samples"] = 9

    rewrite(folder / "mp_rank_00_model_states.pt", change)
    for rank in (0, 1):
        rewrite(damage.shard(folder, rank), lambda tree: tree["optimizer_state_dict"]["base_optimizer_state"][
            "param_groups"][1].update(lr=0.5))  # fmt: skip
    found = diff(states(2, **client) / "a", folder)
    assert (found.code, found.relation, found.data["parameters"]) == (1, "changed", [])
    told = {(one["component"], one["key"]): (one["a"], one["b"]) for one in found.data["values"]}
    assert set(told) == {("client_state", "seen.a.1"), ("lr_scheduler", "last_batch_iteration"), ("counters", "global_samples"),
                         ("param_groups", "1.lr")}  # fmt: skip
    assert told["client_state", "seen.a.1"] == (2, "nan")
    assert told["counters", "global_samples"] == (8, 9)


@pytest.mark.parametrize("harm", [damage.cut, damage.empty, damage.remove])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_shard_that_cannot_be_read(stage: int, harm: Callable[[Path], None], states: States, copied: Copied) -> None:
    whole, folder = states(stage) / "a", copied(states(stage)) / "a"
    same(whole, folder)
    shard = damage.shard(folder, 1)
    harm(shard)
    found = diff(whole, folder)
    assert (found.code, found.relation) == (3, "unknown")
    assert found.unequal == {"masters": "not compared", "moments": "not compared"}
    assert {one["outcome"] for one in found.data["parameters"]} == {"not compared"}
    assert any(shard.name in one for one in found.data["damage"])
    assert shard.name in found.data["answer"]
    assert found.data["b"]["verdict"] in ("damaged", "incomplete")
    # What the file does not concern is still answered.
    rest = diff(whole, folder, "--only", "frozen", "--only", "counters")
    assert (rest.code, rest.relation) == (0, "same")


def test_a_model_file_that_cannot_be_read(states: States, copied: Copied) -> None:
    whole, folder = states(2) / "a", copied(states(2)) / "a"
    damage.cut(folder / "mp_rank_00_model_states.pt")
    found = diff(whole, folder)
    assert (found.code, found.relation) == (3, "unknown")
    assert {"weights", "masters", "moments", "counters"} <= set(found.unequal)
    assert set(found.unequal.values()) == {"not compared"}


def test_damage_does_not_hide_a_difference(states: States, copied: Copied) -> None:
    whole, folder = states(2) / "a", copied(states(2)) / "a"
    damage.cut(damage.shard(folder, 1))
    set_tensor(folder / "mp_rank_00_model_states.pt", ("module", "norm.bias"), lambda one: one + 1)
    found = diff(whole, folder)
    assert (found.code, found.relation) == (1, "changed")
    assert ("weights", "", "norm.bias", "differs") in found.parameters


def test_places_are_right_where_pieces_are_lost(states: States, copied: Copied) -> None:
    whole, folder = states(3) / "a", copied(states(3)) / "a"
    damage.cut(damage.shard(folder, 0))
    set_tensor(damage.shard(folder, 1), (*_masters(3), 0), lambda one: one + (torch.arange(len(one)) == 4) * 0.5)
    one = diff(whole, folder).parameter("masters", "middle.0.weight")
    # Rank 1 has the second half of 289 elements.
    assert (one["outcome"], one["differing"], one["first"], one["at"]) == ("differs", 1, 149, 149)


def test_a_later_tag_with_the_shard_of_an_earlier_one(states: States, copied: Copied) -> None:
    folder = copied(states(2))
    shutil.copyfile(damage.shard(folder / "a", 1), damage.shard(folder / "later", 1))
    found = diff(folder / "a", folder / "later")
    assert found.relation == "later"
    moved = {one["name"] for one in found.data["parameters"] if one["component"] == "masters"}
    # Rank 1 holds all of these, and a part of two others.
    assert moved == TRAINED - {"last.weight", "middle.1.bias", "last.bias"}
    assert found.data["doubts"]
