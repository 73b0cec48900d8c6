"""File names, tags and ``latest``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dspatch.checkpoint import layout, tags
from dspatch.checkpoint.layout import FileRole
from tests.checkpoint.conftest import Saved


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("mp_rank_00_model_states.pt", FileRole("model", mp_rank=0)),
        ("mp_rank_123_model_states.pt", FileRole("model", mp_rank=123)),
        ("zero_pp_rank_12_mp_rank_03_model_states.pt", FileRole("model_part", 12, 3)),
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", FileRole("shard", 0, 0)),
        ("bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt", FileRole("shard", 7, 0, bf16=True)),
        ("zero_pp_rank_7_mp_rank_00optim_states.pt", FileRole("shard", 7, 0)),
        ("expp_rank_1_mp_rank_00_optim_states.pt", FileRole("expert_optimizer", mp_rank=0, expp_rank=1)),
        ("layer_0_expert_11_mp_rank_00_model_states.pt", FileRole("expert", mp_rank=0, layer=0, expert=11)),
        ("expert_2_mp_rank_00_model_states.pt", FileRole("expert", mp_rank=0, expert=2)),
        ("layer_03-model_states.pt", FileRole("layer", layer=3)),
        ("layer_03-model_01-model_states.pt", FileRole("layer", mp_rank=1, layer=3)),
        ("mp_rank_00_model_states.pt.tmp", None),
        ("model.safetensors", None),
        ("zero_pp_rank_x_mp_rank_00_optim_states.pt", None),
    ],
)
def test_names(name: str, role: FileRole | None) -> None:
    assert layout.parse(name) == role


@pytest.mark.parametrize("build", ["z1-bf16", "z2-fp16", "z3-bf16", "z3-fp16", "z0-fp32"])
def test_expected_files_are_those_that_a_release_writes(build: str, saved: Saved) -> None:
    written = {path.name for path in (saved("newest", build) / "global_step3").iterdir()}
    assert written == set(layout.expected_files(int(build[1]), dp_size=2, bf16="bf16" in build))


def test_two_model_ranks() -> None:
    assert layout.expected_files(1, 2, mp_size=2)[:2] == ["mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"]
    assert len(layout.expected_files(3, 4, mp_size=2)) == 16
    assert layout.expert_file(-1, 3) == "expert_3_mp_rank_00_model_states.pt"


def test_tags_newest_first_and_nested(saved: Saved, tmp_path: Path) -> None:
    _tag(tmp_path / "old", 100)
    _tag(tmp_path / "runs" / "b", 300)
    _tag(tmp_path / "zwölf", 200)
    (tmp_path / "logs").mkdir()
    found = tags.list_tags(tmp_path)
    assert [one.name for one in found] == ["runs/b", "zwölf", "old"]
    assert {one.kind for one in found} == {"no shards"}
    real = tags.list_tags(saved("newest", "z2-bf16"))
    assert [(one.name, one.kind, one.has_model, one.has_shards) for one in real] == [
        ("global_step5", "training", True, True), ("global_step3", "training", True, True),
    ]  # fmt: skip
    assert tags.list_tags(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("content", "tag", "problem"),
    [
        (b"t1", "t1", None),
        (b"t1\n", "t1", None),
        (b"t1\r\n", "t1", None),
        ("zwölf".encode(), "zwölf", None),
        (b"a/b", "a/b", None),
        (b"with space", "with space", None),
        (b"", None, "is empty"),
        (b" \n", None, "is empty"),
        (b"t1\nt2\n", "t1\nt2", "holds 2 lines, where one tag belongs"),
        (b"gone", "gone", "names a tag that is not there (gone)"),
        (b"/abs", "/abs", "names an absolute path (/abs), so DeepSpeed ignores the folder it was asked to load from"),
        (b"../x", "../x", "names a tag outside its folder (../x)"),
    ],
)
def test_latest(content: bytes, tag: str | None, problem: str | None, tmp_path: Path) -> None:
    for name in ("t1", "zwölf", "a/b", "with space"):
        _tag(tmp_path / name, 1)
    (tmp_path / "latest").write_bytes(content)
    assert tags.read_latest(tmp_path) == tags.Latest(content.decode(), tag, problem)


def test_latest_that_is_no_text_file(tmp_path: Path) -> None:
    assert tags.read_latest(tmp_path).problem == "is not there"
    (tmp_path / "latest").mkdir()
    assert tags.read_latest(tmp_path).problem == "is a folder, not a file"
    (tmp_path / "latest").rmdir()
    (tmp_path / "latest").write_bytes(b"\xff\xfe")
    assert tags.read_latest(tmp_path).problem == "is not text"
    (tmp_path / "latest").write_bytes(b"x" * 9999)
    assert "more than" in str(tags.read_latest(tmp_path).problem)


def test_what_a_wrong_folder_looks_like(saved: Saved, tmp_path: Path) -> None:
    folder = saved("newest", "z2-bf16")
    assert tags.looks_like(folder / "global_step3").startswith("a tag folder")
    assert tags.looks_like(folder.parent).startswith("one level above")
    assert tags.looks_like(folder / "global_step3" / "mp_rank_00_model_states.pt").startswith("one file of the tag")
    assert tags.looks_like(tmp_path) == "empty"
    assert tags.looks_like(tmp_path / "a" / "b").startswith("not there")
    for name, words in (
        ("model.safetensors", "Hugging Face"), ("adapter_config.json", "PEFT"), (".metadata", "DCP"),
        ("latest_checkpointed_iteration.txt", "Megatron-LM"),
    ):  # fmt: skip
        other = tmp_path / name.replace(".", "")
        other.mkdir()
        (other / name).write_text("x")
        assert words in tags.looks_like(other)
    assert tags.is_export(tmp_path / "modelsafetensors") and not tags.is_export(folder)


def _tag(path: Path, mtime: float) -> None:
    path.mkdir(parents=True)
    (path / "mp_rank_00_model_states.pt").write_bytes(b"x")
    os.utime(path / "mp_rank_00_model_states.pt", (mtime, mtime))
