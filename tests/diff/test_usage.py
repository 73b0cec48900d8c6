"""Arguments, words for people, numbers without numpy, and memory."""

from __future__ import annotations

import math
import re
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch

from dspatch.diff import numbers, report
from tests.diff.comparing import diff, run
from tests.diff.conftest import States
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(["DIR"], 2, "give two folders, or one with --tag-b"), ([], 2, "required: A"),
     (["DIR", "DIR", "--only", "everything"], 2, "invalid choice"), (["DIR", "no/where"], 3, "there is no folder no/where"),
     (["DIR", "DIR", "--tag-b", "c"], 3, "there is no tag 'c'"), (["setup.cfg", "DIR"], 3, "is a file, not a checkpoint folder"),
     (["tests", "DIR"], 3, "holds no DeepSpeed checkpoint")],
)  # fmt: skip
def test_wrong_use(arguments: list[str], code: int, said: str, states: States, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    folder = str(states(2))
    found, output, errors = run(*(folder if one == "DIR" else one for one in arguments))
    assert (found, output) == (code, "")
    assert said in errors


def test_two_tags_of_one_folder(states: States) -> None:
    folder = str(states(2))
    assert run(folder, "--tag-a", "a", "--tag-b", "a")[0] == 0
    code, output, _ = run(folder, "--tag-a", "a", "--tag-b", "later")
    assert code == 1
    # `latest` names the second tag.
    assert run(f"{folder}/a", folder)[1] == output


def test_words_for_people(states: States) -> None:
    _, output, _ = run(str(states(2) / "a"), str(states(2) / "later"))
    for words in (
        "whole; ZeRO stage 2, bf16, 2 ranks, step 1", "B is what A became: B is 2 steps later than A", "correlation 1.0000",
        "parameters that differ: 9", "masters: 289 of 289 elements, largest difference", "at [", "norm B/A 0.99",
        "counters global_steps: 1 in A, 3 in B",
    ):  # fmt: skip
        assert words in output
    assert re.search(r"^  frozen +equal +2 +0 ", output, re.MULTILINE)
    assert "\x1b" not in output
    code, output, _ = run(str(states(2) / "a"), str(states(3) / "a"))
    assert code == 0
    assert "stage 3 keeps them as masters only" in output


def test_only_some_components(states: States) -> None:
    found = diff(states(2) / "a", states(2) / "later", "--only", "frozen", "--only", "param_groups")
    assert (found.code, set(found.outcomes)) == (0, {"frozen", "param_groups"})


def test_every_field_is_documented(states: States) -> None:
    data = diff(states(2) / "a", states(3) / "later").data
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("### `dspatch diff`")[2].partition("\n## ")[0]
    for one in (data, data["a"], next(iter(data["components"].values())), data["parameters"][0], data["values"][0]):
        for name in one:
            assert f"`{name}`" in readme, name
            assert re.search(rf"\b{name}\b", report.__doc__ or ""), name


_PATTERNS = (0.0, -0.0, 1.0, -2.5, 3e-5, math.inf, -math.inf, math.nan, 65504.0, 1e-7)


@pytest.mark.parametrize(
    "dtypes",
    [(one, one) for one in ("float32", "float64", "bfloat16", "float16")]
    + [("bfloat16", "float16"), ("float32", "bfloat16")],
)
def test_the_same_sums_without_numpy(dtypes: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(3)
    sides = []
    for dtype in dtypes:
        one = torch.randn(4096, generator=random).double()
        one[: len(_PATTERNS)] = torch.tensor(_PATTERNS).double()
        one[1000:2000] = 0.5
        sides.append(memoryview(one.to(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes()))
    found = []
    for without in (False, True):
        if without:
            monkeypatch.setattr(numbers, "_numpy", lambda: None)
        apart = numbers.Apart()
        for start, end in ((0, 1024), (1024, 4096)):
            cuts = [
                side[start * numbers.KNOWN[one] : end * numbers.KNOWN[one]]
                for side, one in zip(sides, dtypes, strict=True)
            ]
            numbers.add(apart, cuts[0], cuts[1], dtypes)
        found.append(apart)
    quick, plain = found
    assert (quick.elements, quick.differing, quick.first, quick.at, quick.not_finite, quick.finite, quick.largest) == (
        plain.elements, plain.differing, plain.first, plain.at, plain.not_finite, plain.finite, plain.largest)  # fmt: skip
    assert quick.sums == pytest.approx(plain.sums, rel=1e-9)
    assert quick.elements == 4096
    assert 2000 < quick.differing < 4096


def test_bytes_decide() -> None:
    pairs = {(struct.pack("<f", 0.0), struct.pack("<f", -0.0)): 1, (struct.pack("<f", math.nan),) * 2: 0,
             (struct.pack("<I", 0x7FC00000), struct.pack("<I", 0x7FC00001)): 1}  # fmt: skip
    for (one, other), differing in pairs.items():
        apart = numbers.Apart()
        numbers.add(apart, memoryview(one), memoryview(other), ("float32", "float32"))
        assert apart.differing == differing
        assert numbers.same(memoryview(one), memoryview(other)) == (not differing)
    apart = numbers.Apart()
    eights = ("float8_e5m2", "float8_e5m2")
    numbers.add(apart, memoryview(b"\1\2\3"), memoryview(b"\1\0\3"), eights)
    assert (apart.elements, apart.differing, apart.first, apart.largest) == (3, 1, 1, None)


@pytest.mark.parametrize("without", [False, True])
def test_whole_numbers(without: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if without:
        monkeypatch.setattr(numbers, "_numpy", lambda: None)
    apart = numbers.Apart()
    one, other = struct.pack("<3q", 5, -7, 1 << 40), struct.pack("<3q", 5, -9, 1 << 41)
    numbers.add(apart, memoryview(one), memoryview(other), ("int64", "int64"), at=10)
    assert (apart.elements, apart.differing, apart.first, apart.at, apart.largest) == (3, 2, 11, 12, float(1 << 40))


def test_memory_is_flat(tmp_path: Path, states: States) -> None:
    import shutil

    from tests.support.damage import rewrite

    sizes = {}
    for megabytes in (1, 24):
        for side in ("a", "b"):
            folder = shutil.copytree(states(2) / "a", tmp_path / f"{side}{megabytes}" / "a")
            large = torch.zeros(megabytes << 18)
            large[-1] = side == "b"  # the last of all, so that all before has to be looked at again
            rewrite(folder / "mp_rank_00_model_states.pt", lambda tree, large=large: tree["module"].update(large=large))
        tracemalloc.start()
        found = diff(tmp_path / f"a{megabytes}", tmp_path / f"b{megabytes}")
        sizes[megabytes] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found.parameters == [("weights", "", "large", "differs")]
        assert found.parameter("weights", "large")["first"] == (megabytes << 18) - 1
    assert sizes[24] < sizes[1] + (4 << 20)
