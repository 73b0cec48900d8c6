"""Every kind of damage has its finding, its verdict and its exit code; `test_healthy` has the twins."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dspatch.checkpoint import layout
from tests.checkpoint import hostile
from tests.checkpoint.conftest import Saved
from tests.offline.conftest import Copied, Special
from tests.offline.looking import broken, healthy, look
from tests.support import damage

_NEWEST = "global_step5"
Harm = Callable[[Path], object]


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as handle:
        handle.write(data)


def _exchange(one: Path, other: Path) -> None:
    aside = one.with_suffix(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _link_away(tag: Path) -> None:
    shard = damage.shard(tag, 1)
    shard.unlink()
    shard.symlink_to("/nowhere/at/all")


#: name -> (build, what is done to the tag folder, finding, verdict).
_HARMS: dict[str, tuple[str, Harm, str, str]] = {
    "shard missing": ("z2-bf16", lambda tag: damage.shard(tag, 1).unlink(), "file.missing", "incomplete"),
    "all shards missing": ("z2-bf16", lambda tag: [damage.shard(tag, rank).unlink() for rank in (0, 1)], "file.missing",
                           "incomplete"),
    "model file missing": ("z2-bf16", lambda tag: damage.model_file(tag).unlink(), "file.missing", "incomplete"),
    "stage-3 shard missing": ("z3-bf16", lambda tag: damage.shard(tag, 0).unlink(), "file.missing", "incomplete"),
    "stage-3 model file missing": ("z3-fp16", lambda tag: damage.model_file(tag, 1).unlink(), "file.missing", "incomplete"),
    "zero bytes": ("z2-fp16", lambda tag: damage.empty(damage.shard(tag, 0)), "file.empty", "damaged"),
    "cut": ("z3-bf16", lambda tag: damage.cut(damage.shard(tag, 1)), "file.cut", "damaged"),
    "cut by a few bytes": ("z1-bf16", lambda tag: damage.cut(damage.shard(tag, 1), 0.999), "file.cut", "damaged"),
    "over-long": ("z1-fp16", lambda tag: _append(damage.shard(tag, 1), b"\0" * 512), "file.over-long", "damaged"),
    "stage 0 cut": ("z0-fp32", lambda tag: damage.cut(damage.model_file(tag)), "file.cut", "damaged"),
    "another program's file": ("z2-bf16", lambda tag: damage.shard(tag, 0).write_text("hello\n"), "file.not-torch", "damaged"),
    "allocated, never written": ("z2-bf16", lambda tag: damage.shard(tag, 0).write_bytes(bytes(9999)), "file.not-torch",
                                 "damaged"),
    "dangling link": ("z2-bf16", _link_away, "file.unreadable", "damaged"),
    "shards of two ranks exchanged": ("z2-bf16", damage.swap_shards, "shard.other-rank", "damaged"),
    "stage-3 shards of two ranks exchanged": ("z3-fp16", damage.swap_shards, "shard.other-rank", "damaged"),
    "stage-3 model files of two ranks exchanged": (
        "z3-bf16", lambda tag: _exchange(damage.model_file(tag, 0), damage.model_file(tag, 1)), "file.other-name", "damaged"),
    "stage-3 shard of another rank of another tag": (
        "z3-bf16", lambda tag: shutil.copyfile(damage.shard(tag.parent / "global_step3", 0), damage.shard(tag, 1)),
        "shard.other-rank", "damaged"),
    "one rank's shard copied over another's": (
        "z3-bf16", lambda tag: shutil.copyfile(damage.shard(tag, 0), damage.shard(tag, 1)), "shard.twin", "damaged"),
    "shard of another tag": (
        "z2-fp16", lambda tag: damage.take_shard_of(tag, tag.parent / "global_step3", 1), "mixed.steps", "damaged"),
    "stage-3 shard of another tag": (
        "z3-fp16", lambda tag: damage.take_shard_of(tag, tag.parent / "global_step3", 0), "mixed.steps", "damaged"),
    "stage-3 model file of another tag": (
        "z3-bf16", lambda tag: damage.take_model_file_of(tag, tag.parent / "global_step3", 1), "mixed.steps", "damaged"),
    "a rank too many": (
        "z2-bf16", lambda tag: shutil.copyfile(damage.shard(tag, 1), tag / layout.shard_file(2, bf16=True)), "file.stale",
        "whole"),
    "a model file of another stage": (
        "z3-bf16", lambda tag: shutil.copyfile(damage.model_file(tag, 1), tag / layout.model_file(2)), "file.stale", "whole"),
    "two names for one rank": (
        "z2-bf16", lambda tag: shutil.copyfile(damage.shard(tag, 1), tag / layout.shard_file(1)), "file.duplicate", "whole"),
}  # fmt: skip


@pytest.mark.parametrize("name", _HARMS)
def test_damage_is_found(name: str, copied: Copied) -> None:
    build, harm, id, verdict = _HARMS[name]
    folder = copied("newest", build)
    harm(folder / _NEWEST)

    found = look(folder)

    broken(found, id, verdict)
    assert ("latest.not-whole" in found.ids) == (verdict != "whole")
    assert found.data["newest_whole"] == ("global_step3" if verdict != "whole" else _NEWEST)
    assert found.data["looked_at"].get("global_step3", "whole") == "whole"
    healthy(look(folder, "--tag", "global_step3"))


def test_what_is_left_of_a_tag_still_names_what_is_missing(copied: Copied) -> None:
    folder = copied("newest", "z3-bf16")
    damage.shard(folder / _NEWEST, 1).unlink()
    one = broken(look(folder), "file.missing", "incomplete")
    assert (one["file"], one["rank"]) == (layout.shard_file(1, bf16=True), 1)
    assert "1 more" not in one["text"]


@pytest.mark.parametrize("build", ["z2-bf16", "z3-fp16"])
def test_names_inside_files_are_believed_only_where_they_tell(build: str, copied: Copied, tmp_path: Path) -> None:
    """The twins of exchanged files: renamed tags, copies, and files that a converter wrote under names of its own."""
    folder = copied("newest", build)
    (folder / _NEWEST).rename(folder / "best")
    damage.set_latest(folder, "best")
    healthy(look(folder, "--deep"))
    healthy(look(shutil.copytree(folder, tmp_path / "copy"), "--deep"))

    shard = damage.shard(folder / "best", 1)
    for name in ("", "part-7.pt"):
        damage.saved_under(shard, name)
        healthy(look(folder, "--deep"))
    # With the name of another rank only content that belongs here is believed, and at stage 3 no content tells.
    aside = tmp_path / shard.name
    shutil.move(shard, aside)
    damage.saved_under(aside, damage.shard(folder / "best", 0).name)
    shutil.move(aside, shard)
    if build.startswith("z2"):
        healthy(look(folder, "--deep"))
    else:
        assert broken(look(folder), "shard.other-rank")["rank"] == 1


def test_layers_that_were_exchanged_and_layers_that_were_copied(special: Special, tmp_path: Path) -> None:
    folder = shutil.copytree(special("newest", "save_pipeline", stages=2), tmp_path / "x")
    first, last = (folder / "global_step2" / f"layer_{at:02d}-model_states.pt" for at in (0, 4))
    _exchange(first, last)
    broken(look(folder), "file.other-name")
    shutil.copyfile(first, last)
    found = look(folder)
    assert (found.code, found.ids, found.finding("file.renamed")["file"]) == (0, set(), first.name)


def test_shards_of_another_world_release_or_model(copied: Copied, saved: Saved) -> None:
    role = "newest"
    folder = copied(role, "z2-fp16")
    tag = folder / _NEWEST
    original = damage.shard(tag, 0).read_bytes()

    alone = saved(role, "z2-fp16", 1) / _NEWEST
    shutil.copyfile(damage.shard(alone, 0), damage.shard(tag, 0))
    broken(look(folder), "mixed.world")

    other = saved("oldest", "z2-fp16") / _NEWEST
    shutil.copyfile(damage.shard(other, 0), damage.shard(tag, 0))
    broken(look(folder), "mixed.release")

    wider = saved(role, "z2-fp16", model={"width": 21}) / _NEWEST
    for rank in (0, 1):
        shutil.copyfile(damage.shard(wider, rank), damage.shard(tag, rank))
    broken(look(folder), "shard.other-model")

    warming = saved(role, "z2-fp16", scheduler="warmup") / _NEWEST
    damage.shard(tag, 0).write_bytes(original)
    shutil.copyfile(damage.shard(warming, 1), damage.shard(tag, 1))
    assert "lr" in broken(look(folder), "mixed.save")["found"]


@pytest.mark.parametrize("build", ["z1-bf16", "z2-fp16"])
def test_a_shard_of_another_run_shows_under_deep(build: str, copied: Copied, saved: Saved) -> None:
    folder = copied("newest", build)
    # Same step, same sizes, valid checksums: only the values tell.
    damage.take_shard_of(folder / _NEWEST, saved("newest", build, seed=1) / _NEWEST, 1)
    healthy(look(folder))
    one = broken(look(folder, "--deep"), "shard.other-save")
    assert one["rank"] == 1


def test_model_file_of_another_tag_shows_under_deep(copied: Copied) -> None:
    folder = copied("newest", "z2-bf16")
    damage.take_model_file_of(folder / _NEWEST, folder / "global_step3")
    plain = look(folder)
    assert (plain.code, plain.finding("counters.step")["severity"]) == (0, "info")
    broken(look(folder, "--deep"), "shard.other-save")


@pytest.mark.parametrize("build", ["z0-bf16", "z2-fp16", "z3-bf16"])
def test_a_flipped_bit_shows_under_deep(build: str, copied: Copied) -> None:
    folder = copied("newest", build)
    paths = sorted((folder / _NEWEST).glob("*.pt"))
    for path in paths:
        original = path.read_bytes()
        record = damage.flip_bit(path)
        healthy(look(folder))
        found = look(folder, "--deep")
        one = broken(found, "file.crc")
        assert one["file"] == path.name
        assert record.split("/", 1)[1] in one["found"]
        assert {file["status"] for file in found.tag["files"] if file["name"] == path.name} == {"crc"}
        path.write_bytes(original)
    healthy(look(folder, "--deep"))


def test_a_changed_byte_between_records_shows_under_deep(copied: Copied) -> None:
    folder = copied("newest", "z2-bf16")
    path = damage.shard(folder / _NEWEST, 0)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK\x03\x04", 1)
    raw[at + 10] ^= 1  # a time stamp, which no reader looks at
    path.write_bytes(bytes(raw))
    broken(look(folder, "--deep"), "file.index")


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_moments_that_are_no_numbers(stage: int, value: str, special: Special) -> None:
    folder = special("newest", "save_poisoned", stage=stage, value=float(value))
    healthy(look(folder))
    one = broken(look(folder, "--deep"), "values.not-finite")
    assert one["rank"] == 1
    assert one["text"].startswith(damage.shard(folder / "global_step2", 1).name + " holds 1 elements in its moments")
    assert "exp_avg" in one["found"]


@pytest.mark.parametrize("stage", [1, 3])
def test_moments_that_are_all_zero(stage: int, special: Special) -> None:
    folder = special("newest", "save_poisoned", stage=stage, value=0.0, everything=True)
    healthy(look(folder))
    broken(look(folder, "--deep"), "moments.all-zero")


@pytest.mark.parametrize("place", ["global_step5.tmp", "global_step5/tmp", "tmp", "."])
@pytest.mark.parametrize("build", ["z2-bf16", "z3-bf16"])
def test_a_shard_that_was_left_elsewhere(place: str, build: str, copied: Copied) -> None:
    folder = copied("newest", build)
    shard = damage.shard(folder / _NEWEST, 1)
    (folder / place).mkdir(exist_ok=True)
    shutil.move(shard, folder / place / shard.name)

    one = broken(look(folder), "file.elsewhere", "incomplete")

    assert one["file"] == shard.name
    subprocess.run(one["do"], shell=True, check=True)
    assert look(folder).data["tags"][0]["verdict"] == "whole"


def test_a_shard_of_another_step_elsewhere_is_not_offered(copied: Copied) -> None:
    folder = copied("newest", "z2-bf16")
    shard = damage.shard(folder / _NEWEST, 1)
    (folder / "tmp").mkdir()
    shutil.copyfile(damage.shard(folder / "global_step3", 1), folder / "tmp" / shard.name)
    shard.unlink()
    broken(look(folder), "file.missing", "incomplete")


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("gone", "latest.wrong"), ("", "latest.wrong"), ("a\nb\n", "latest.wrong"), ("/abs", "latest.wrong"),
        (b"\xff\xfe", "latest.wrong"), (None, "latest.absent"),
    ],
)  # fmt: skip
def test_latest_that_names_nothing(text: str | bytes | None, id: str, copied: Copied) -> None:
    folder = copied("newest", "z2-bf16")
    if text is None:
        (folder / "latest").unlink()
    else:
        damage.set_latest(folder, text)
    found = look(folder)
    one = broken(found, id, "whole")
    healthy(look(folder, "--tag", _NEWEST))
    subprocess.run(one["do"], shell=True, check=True)
    healthy(look(folder))


def test_latest_that_is_older_is_only_noted(copied: Copied) -> None:
    folder = copied("newest", "z2-bf16")
    damage.set_latest(folder, "global_step3\n")
    found = look(folder)
    assert (found.code, found.tag["tag"], found.data["newest_whole"]) == (0, "global_step3", _NEWEST)
    assert found.finding("latest.behind")["severity"] == "info"


def test_missing_experts_and_layers(special: Special, tmp_path: Path) -> None:
    for number, (scenario, kwargs, name) in enumerate((
        ("save_experts", {"ep_size": 2}, layout.expert_file(0, 3)),
        ("save_experts", {"ep_size": 2, "stage": 0}, layout.expert_optimizer_file(1)),
        ("save_pipeline", {"stages": 2, "stage": 1, "precision": "bf16"}, "layer_02-model_states.pt"),
        ("save_pipeline", {"stages": 2}, layout.model_file(0, 1)),
        ("save_pipeline", {"stages": 2, "stage": 1, "precision": "bf16"}, layout.shard_file(0, 1, bf16=True)),
    )):  # fmt: skip
        folder = shutil.copytree(special("newest", scenario, **kwargs), tmp_path / str(number))
        (folder / "global_step2" / name).unlink()
        assert broken(look(folder), "file.missing", "incomplete")["file"] == name


# --- what releases leave behind ---------------------------------------------------------------------------------------


def test_optimizer_state_that_a_release_does_not_write(saved: Saved, special: Special) -> None:
    one = broken(look(saved("stage0_loses_moments", "z0-bf16")), "fault.A4", "incomplete")
    assert one["fault"] == "A4"
    config = {"data_types": {"grad_accum_dtype": "fp32"}}
    folder = special("stage0_loses_moments", "save", stage=1, precision="bf16", config=config)
    found = look(folder)
    assert broken(found, "fault.A5", "incomplete")["fault"] == "A5"
    assert "file.missing" not in found.ids
    healthy(look(special("newest", "save", stage=1, precision="bf16", config=config), "--deep"))


def test_round_robin_and_elastic_are_warned_of(special: Special) -> None:
    broken(
        look(special("newest", "save", stage=2, zero={"round_robin_gradients": True}), "--deep"), "fault.C14", "whole"
    )
    found = look(special("newest", "save", stage=2, zero={"elastic_checkpoint": True}))
    assert found.code == 1 and found.ids == {"fault.F7"}


def test_client_state_over_the_counters(special: Special) -> None:
    client = {"global_steps": "many", "lr_scheduler": 7}
    folder = special("newest", "save_client", stage=2, client=client)
    one = broken(look(folder), "fault.F3")
    assert "global_steps, lr_scheduler" in one["text"]
    healthy(look(special("newest", "save_client", stage=2, client={"epoch": 1, "args": {"a": [1, 2]}})))


def test_weights_only(special: Special, tmp_path: Path) -> None:
    found = look(special("newest", "save_bare"))
    broken(found, "tag.export", "export only")
    (tmp_path / "model.safetensors").write_bytes(b"x")
    found = look(tmp_path)
    broken(found, "folder.export", "export only")


# --- hostile files through the command --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", hostile.EXECUTING)
def test_a_pickle_that_would_run_something(name: str, tmp_path: Path) -> None:
    tag = tmp_path / "step1"
    tag.mkdir()
    hostile.write_pickle(tag / layout.model_file(2), hostile.EXECUTING[name](tmp_path))
    (tmp_path / "latest").write_text("step1")

    found = look(tmp_path, "--deep")

    broken(found, "pickle.dangerous")
    assert not (tmp_path / hostile.MARK).exists()


def test_pickles_and_archives_that_take_or_lie(tmp_path: Path) -> None:
    tag = tmp_path / "step1"
    tag.mkdir()
    # Those that cost time on purpose have tests of their own beside the reader.
    taking = {name: data for name, data in hostile.TAKING.items() if not name.startswith(("many", "deep", "wide"))}
    for number, data in enumerate(taking.values()):
        hostile.write_pickle(tag / layout.shard_file(number), data)
    (tmp_path / "parts").mkdir()
    paths = [*hostile.write_archives(tmp_path / "parts").values(), *hostile.write_tensors(tmp_path / "parts").values()]
    for number, path in enumerate(paths, len(taking)):
        shutil.move(path, tag / layout.shard_file(number))

    found = look(tmp_path, "--tag", "step1")

    assert (found.code, found.data["verdict"]) == (1, "damaged")
    # Every file has a state of its own, and none of them is fine.
    states = {one["name"]: one["status"] for one in found.tag["files"] if one["size"] is not None}
    assert len(states) == len(taking) + len(paths)
    assert [name for name, state in states.items() if state == "ok"] == []
