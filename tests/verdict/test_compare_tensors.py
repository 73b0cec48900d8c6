"""Live tensors against tensors in files that torch wrote, in every way in which the two can be laid out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspatch.checkpoint.unpickle import read_tree
from dspatch.live.reading import Fragment, LivePair, LiveState, LiveTensor, LiveValue, Reading
from dspatch.verdict.compare import Comparison, compare

ASKED = frozenset(("weights", "masters", "moments", "optimizer_step", "param_groups", "loss_scaler", "lr_scheduler"))
THREE = (Fragment("a", 0, 40), Fragment("b", 40, 50), Fragment("c", 90, 10))


def measure(
    folder: Path, saved: object, live: torch.Tensor, numel: int, level: str = "full", **kwargs: object
) -> Comparison:
    path = folder / "shard.pt"
    torch.save({"m": saved}, path, **kwargs)
    reading = Reading("test", 1, 0, tensors=[LiveTensor("masters", "group 0", "shard", ("m",), live, numel, THREE)])
    return compare(reading, {"shard": read_tree(path)}, level=level, asked=ASKED)


def assert_only(result: Comparison, names: tuple[str, ...]) -> None:
    if not names:
        assert {str(one) for one in result.outcomes.values()} == {"restored"}
        assert result.findings == []
    else:
        assert result.outcomes["masters"].word == "mismatch"
        assert [one.names for one in result.findings] == [names]


@pytest.mark.parametrize("level", ["full", "bytes"])
@pytest.mark.parametrize("layout", ["whole", "lean view", "padded", "inside", "legacy", "strided", "other dtype"])
def test_every_layout_is_seen_through(tmp_path: Path, layout: str, level: str) -> None:
    values = torch.randn(110)
    values[100:] = 0
    live, legacy = values.clone(), False
    saved: torch.Tensor = values
    if layout == "lean view":
        saved = values[:100]
    elif layout == "inside":
        saved = torch.cat([torch.randn(7), values])[7:]
    elif layout == "legacy":
        legacy = True
    elif layout == "strided":
        saved = torch.stack([values, torch.randn(110)], dim=1)[:, 0]
    elif layout == "other dtype":
        saved, live = values, values.bfloat16()
    for changed, names in ((None, ()), (0, ("a",)), (39, ("a",)), (40, ("b",)), (99, ("c",)), (104, ())):
        here = live.clone()
        if changed is not None:
            here[changed] += 1
        result = measure(tmp_path, saved, here, 100, level, _use_new_zipfile_serialization=not legacy)
        assert_only(result, names)
        assert result.bytes_compared == 100 * live.element_size()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 100 * 4 - 1), st.integers(0, 7))
def test_any_changed_bit_is_found_and_named(tmp_path: Path, byte: int, bit: int) -> None:
    saved = torch.randn(100)
    live = saved.clone()
    assert_only(measure(tmp_path, saved, live, 100), ())
    live.view(torch.uint8)[byte] ^= 1 << bit
    owner = next(one.name for one in THREE if one.start * 4 <= byte < (one.start + one.numel) * 4)
    assert_only(measure(tmp_path, saved, live, 100), (owner,))


def test_nan_equals_itself_and_zero_has_a_sign(tmp_path: Path) -> None:
    saved = torch.full((100,), float("nan"))
    assert_only(measure(tmp_path, saved, saved.clone(), 100), ())
    assert_only(measure(tmp_path, torch.zeros(100), -torch.zeros(100), 100), ("a", "b", "c"))


def test_another_size_is_a_mismatch(tmp_path: Path) -> None:
    result = measure(tmp_path, torch.randn(60), torch.randn(110), 100)
    assert result.outcomes["masters"].word == "mismatch"
    assert "100 elements live, 60 in the file" in result.findings[0].found


def test_bit_rot_behind_the_index_is_found(tmp_path: Path) -> None:
    """The index still has the checksum of what was written, and a load that reads the rotten byte differs from it."""
    saved = torch.randn(100)
    measure(tmp_path, saved, saved, 100)
    path = tmp_path / "shard.pt"
    tree = read_tree(path)
    data = bytearray(path.read_bytes())
    data[tree.get(("m",)).offset + 41 * 4] ^= 4
    path.write_bytes(data)
    live = torch.load(path)["m"]
    reading = Reading("test", 1, 0, tensors=[LiveTensor("masters", "g", "shard", ("m",), live, 100, THREE)])
    for level in ("full", "bytes"):
        result = compare(reading, {"shard": read_tree(path)}, level=level, asked=ASKED)
        assert result.outcomes["masters"].word == "mismatch"
        assert "changed after it was written" in result.findings[0].found


def state(entries: dict[str, object]) -> Reading:
    return Reading("test", 1, 0, states=[LiveState("group 0", "shard", (("state", 0),), entries, 100, 100, THREE)])


def file_with(path: Path, content: object) -> dict[str, object]:
    torch.save(content, path)
    return {"shard": read_tree(path)}


def test_state_that_one_side_lacks(tmp_path: Path) -> None:
    moment = torch.rand(100)
    files = file_with(tmp_path / "s.pt", {"state": {0: {"exp_avg": moment, "step": torch.tensor(3.0)}}})
    healthy = compare(state({"exp_avg": moment.clone(), "step": 3}), files, asked=ASKED)
    assert {str(one) for one in healthy.outcomes.values()} == {"restored"}
    assert compare(state({}), files, asked=ASKED).outcomes["moments"].word == "fresh"
    more = {"exp_avg": moment, "step": 3, "exp_avg_sq": moment}
    assert compare(state(more), files, asked=ASKED).outcomes["moments"].word == "mismatch"
    empty = file_with(tmp_path / "e.pt", {"state": {}})
    assert compare(state({}), empty, asked=ASKED).findings == []
    assert compare(state({}), file_with(tmp_path / "n.pt", {}), asked=ASKED).outcomes["moments"].word == "absent"


def test_values_are_compared_by_value(tmp_path: Path) -> None:
    saved = {"lr": 0.1, "betas": (0.9, 0.99), "new": 1, "fused": None, "scale": float("nan")}
    files = file_with(tmp_path / "s.pt", {"g": saved})

    def outcome(**changed: object) -> list[tuple[str, ...]]:
        live = {**saved, "added_by_torch": True, **changed}
        reading = Reading("t", 1, 0, values=[LiveValue("param_groups", "group 0", "shard", ("g",), live)])
        return [one.names for one in compare(reading, files, asked=ASKED).findings]

    assert outcome(lr=torch.tensor(0.1, dtype=torch.float64), betas=[0.9, 0.99]) == []
    assert outcome(lr=0.2) == [("group 0.lr",)]
    assert outcome(betas=(0.9, 0.98)) == [("group 0.betas[1]",)]


def test_what_nobody_asked_for_is_left_out(tmp_path: Path) -> None:
    files = file_with(tmp_path / "s.pt", {"m": torch.randn(100)})
    reading = Reading("t", 1, 0, tensors=[LiveTensor("masters", "g", "shard", ("m",), torch.randn(100), 100, THREE)])
    result = compare(reading, files, asked=frozenset(("weights",)))
    assert result.outcomes["masters"].word == "left out"
    assert result.findings == []


def test_a_file_that_was_not_read_is_not_checked() -> None:
    reading = Reading("t", 1, 0, tensors=[LiveTensor("masters", "g", "shard", ("m",), torch.randn(9), 9, ())])
    assert str(compare(reading, {}, asked=ASKED).outcomes["masters"]) == "not checked (its shard file was not read)"
    off = compare(reading, {}, asked=ASKED, level="off")
    assert str(off.outcomes["masters"]) == "not checked (verification is off)"
    with pytest.raises(ValueError, match="level is one of full"):
        compare(reading, {}, asked=ASKED, level="fast")


def test_masters_that_were_saved_stale_are_noteworthy_and_no_loss(tmp_path: Path) -> None:
    masters, weights = torch.randn(100), torch.randn(100).bfloat16()
    torch.save({"module": {"a": weights}}, tmp_path / "model.pt")
    files = {**file_with(tmp_path / "s.pt", {"m": masters}), "model": read_tree(tmp_path / "model.pt")}
    reading = Reading(
        "t", 1, 0,
        tensors=[
            LiveTensor("masters", "g", "shard", ("m",), masters, 100, THREE),
            LiveTensor("weights", "a", "model", ("module", "a"), weights, 100, (Fragment("a", 0, 100),)),
        ],
        pairs=[LivePair("masters", "g", masters, weights, THREE)],
    )  # fmt: skip
    result = compare(reading, files, asked=ASKED)
    assert result.outcomes["masters"].word == "restored"
    assert [one.outcome for one in result.findings] == ["restored"]
