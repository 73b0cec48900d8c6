"""Loads that find nothing, not everywhere, or not what was asked for: one clear error on all ranks, engine untouched."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import damage
from tests.support.pool import Pools
from tests.support.results import RankResult, noted, values, warnings_of

SCENARIOS = "tests.faults.scenarios.loading:"
ZERO2: dict[str, Any] = {"stage": 2}


def run(pools: Pools, scenario: str, role: str = "newest", **kwargs: Any) -> list[RankResult]:
    return pools.get(role, 2).run(SCENARIOS + scenario, timeout=120, **kwargs)


def saved(pools: Pools, folder: Path, tags: list[Any], role: str = "newest", **engine: Any) -> None:
    values(run(pools, "save", role, folder=str(folder), engine={**ZERO2, **engine}, tags=tags))


def refused(results: list[RankResult], kind: str, *texts: str) -> str:
    """The text of the one error that all ranks raised, with every engine as it was."""
    found = values(results)
    assert {one["error"] for one in found} == {found[0]["error"]}, found
    assert found[0]["error"] is not None, found
    name, text = found[0]["error"]
    assert name == kind, text
    for one in texts:
        assert one in text
    assert [one["changed"] for one in found] == [[], []]
    return str(text)


def restored(results: list[RankResult]) -> None:
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert set(one["report"].values()) == {"restored"}, one["report"]
        assert one["moved"] in (None, [])
    assert warnings_of(results) == []


# --- nothing to load --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["oldest", "newest"])
def test_nothing_to_load_raises_and_names_the_tags(pools: Pools, tmp_path: Path, role: str) -> None:
    saved(pools, tmp_path, ["a", "b"], role)
    (tmp_path / "latest").unlink()
    results = run(pools, "load", role, folder=str(tmp_path), engine=ZERO2, settings={})
    refused(results, "NothingLoaded", "tags there, newest first: b, a", "rank 0", "DSPATCH_MODE=warn")


def test_nothing_to_load_goes_by_silently_without_the_guard(pools: Pools, tmp_path: Path) -> None:
    saved(pools, tmp_path, ["a"])
    (tmp_path / "latest").unlink()
    for settings in (None, {"disable": "load-guard"}):
        for one in values(run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings=settings)):
            assert (one["error"], one["path"], one["steps"]) == (None, None, 0)


@pytest.mark.parametrize(("mode", "warnings"), [("warn", 1), ("observe", 0)])
def test_nothing_to_load_in_other_modes(pools: Pools, tmp_path: Path, mode: str, warnings: int) -> None:
    results = run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={"mode": mode})
    assert [one["error"] for one in values(results)] == [None, None]
    assert len([text for text in warnings_of(results) if "nothing to load" in text]) == warnings


def test_resume_if_any_is_a_declared_intent(pools: Pools, tmp_path: Path) -> None:
    results = run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={}, expect={"nothing": "ok"})
    assert [(one["error"], one["path"]) for one in values(results)] == [(None, None)] * 2
    assert warnings_of(results) == []


def test_the_tag_folder_itself_is_one_level_too_deep(pools: Pools, tmp_path: Path) -> None:
    saved(pools, tmp_path, ["a"])
    results = run(pools, "load", folder=str(tmp_path / "a"), engine=ZERO2, settings={})
    refused(results, "NothingLoaded", str(tmp_path))


def test_one_rank_finds_nothing(pools: Pools, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    arguments = {"folder": str(folder), "elsewhere": str(elsewhere)}
    refused(run(pools, "disagreeing_folder", **arguments, settings={}), "LoadRefused", "rank 1", str(elsewhere))
    unguarded = values(run(pools, "disagreeing_folder", **arguments, settings={"disable": "load-guard"}))
    assert [one["path"] is None for one in unguarded] == [False, True], "without the guard half of the ranks resume"


# --- tags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ("", "empty tag"),
        ("  ", "empty tag"),
        ("a\n", "but there is 'a'"),
        ("../a", "leads out"),
        ("7.0", "but there is '7'"),
        ("nowhere", "the tag is not there"),
        ("x" * 5000, "the tag is not there"),
    ],
)
def test_a_tag_that_cannot_be_loaded(pools: Pools, tmp_path: Path, tag: str, text: str) -> None:
    saved(pools, tmp_path, ["a", 7])
    refused(run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={}, tag=tag), "LoadRefused", text)


def test_a_bare_assertion_gets_its_sentence(pools: Pools, tmp_path: Path) -> None:
    """In other modes DeepSpeed is let at it, and fails without a word; the exception stays the one that it raised."""
    saved(pools, tmp_path, ["a"])
    for one in values(run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={"mode": "warn"}, tag="b")):
        assert one["error"] == ("AssertionError", "")
        assert noted(one, "another number of model files")


def test_an_absolute_tag(pools: Pools, tmp_path: Path) -> None:
    saved(pools, tmp_path, ["a"])
    results = run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={}, tag=str(tmp_path / "a"))
    refused(results, "LoadRefused", "absolute path")


@pytest.mark.parametrize(
    ("latest", "text"), [(b"", "is empty"), (b" \n", "is empty"), (b"gone", "not there"), (b"a\nb\n", "2 lines")]
)
def test_a_latest_that_names_no_tag(pools: Pools, tmp_path: Path, latest: bytes, text: str) -> None:
    saved(pools, tmp_path, ["a"])
    damage.set_latest(tmp_path, latest)
    refused(run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={}), "LoadRefused", text)


def test_a_latest_that_is_a_folder_and_a_folder_that_is_a_file(pools: Pools, tmp_path: Path) -> None:
    saved(pools, tmp_path, ["a"])
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    refused(run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={}), "LoadRefused", "is a folder")
    (tmp_path / "file").write_text("no folder")
    results = run(pools, "load", folder=str(tmp_path / "file"), engine=ZERO2, settings={})
    refused(results, "NothingLoaded", "a file")


@pytest.mark.parametrize("tag", ["a/b", "épôque 5", "with space"])
def test_unusual_tags_that_work_upstream_work_silently(pools: Pools, tmp_path: Path, tag: str) -> None:
    saved(pools, tmp_path, [tag])
    damage.set_latest(tmp_path, f"{tag}\r\n")
    restored(run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={}, probe=True))


@pytest.mark.parametrize("role", ["oldest", "newest"])
@pytest.mark.parametrize("tag_type", ["str", "int", "numpy", "path"])
def test_a_tag_of_any_type(pools: Pools, tmp_path: Path, role: str, tag_type: str) -> None:
    saved(pools, tmp_path, [7], role)
    tag: Any = "7" if tag_type in ("str", "path") else 7
    restored(run(pools, "load", role, folder=str(tmp_path), engine=ZERO2, settings={}, tag=tag, tag_type=tag_type))


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("harm", ["remove", "cut", "empty"])
def test_a_shard_that_is_gone_or_damaged(pools: Pools, tmp_path: Path, stage: int, harm: str) -> None:
    saved(pools, tmp_path, ["a"], stage=stage)
    getattr(damage, harm)(damage.shard(tmp_path / "a", 1))
    text = refused(
        run(pools, "load", folder=str(tmp_path), engine={"stage": stage}, settings={}), "LoadRefused", "rank 1"
    )
    assert "optim_states.pt" in text


@pytest.mark.parametrize(
    ("stage", "left"),
    [(2, "a.tmp/{}"), *(pytest.param(stage, left, marks=pytest.mark.whole) for stage, left in (
        (3, "a/tmp/{}"), (2, "staging/{}"), (3, "a/{}.part"), (2, "")))],
)  # fmt: skip
def test_a_shard_that_was_left_elsewhere_is_found(pools: Pools, tmp_path: Path, stage: int, left: str) -> None:
    """One rank's own shard: the error names rank, host and path, the node-local option, and where the shard may be."""
    saved(pools, tmp_path, ["a", "b"], stage=stage)
    shard = damage.shard(tmp_path / "a", 1)
    moved = tmp_path / left.format(shard.name) if left else tmp_path.with_name("gone")
    moved.parent.mkdir(exist_ok=True)
    shard.rename(moved)
    text = refused(
        run(pools, "load", folder=str(tmp_path), engine={"stage": stage}, tag="a", settings={}),
        "LoadRefused", shard.name, f"rank 1 on {socket.gethostname()}", str(tmp_path / "a"), "use_node_local_storage",
    )  # fmt: skip
    assert (f"may be it lies at {moved}" in text) == bool(left)
    assert str(tmp_path / "b") not in text, "every tag has a shard of that name"
    moved.rename(shard)
    restored(run(pools, "load", folder=str(tmp_path), engine={"stage": stage}, tag="a", settings={}))


def test_shards_of_two_ranks_are_mixed_up(pools: Pools, tmp_path: Path) -> None:
    saved(pools, tmp_path, ["a"])
    damage.swap_shards(tmp_path / "a")
    refused(run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={}), "LoadRefused", "content of another")


def test_a_shard_that_a_converter_wrote_under_another_name_is_believed_by_its_content(pools: Pools, tmp_path: Path) -> None:
    saved(pools, tmp_path, ["a"])
    one, other = (damage.shard(tmp_path / "a", rank) for rank in (0, 1))
    aside = tmp_path / other.name
    other.replace(aside)
    damage.saved_under(aside, one.name)
    aside.replace(other)
    restored(run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={}))


@pytest.mark.parametrize("stage", [2, 3])
def test_a_shard_of_another_tag(pools: Pools, tmp_path: Path, stage: int) -> None:
    saved(pools, tmp_path, ["a", "b"], stage=stage)
    damage.take_shard_of(tmp_path / "b", tmp_path / "a", 1)
    results = run(pools, "load", folder=str(tmp_path), engine={"stage": stage}, settings={})
    refused(results, "LoadRefused", "different saves", "step 3 in the shard of rank 1")


def test_all_shards_of_another_tag_do_not_fit_their_weights(pools: Pools, tmp_path: Path) -> None:
    saved(pools, tmp_path, ["a", "b"])
    for rank in range(2):
        damage.take_shard_of(tmp_path / "b", tmp_path / "a", rank)
    results = run(pools, "load", folder=str(tmp_path), engine=ZERO2, settings={})
    for one in values(results):
        assert one["error"] is None, "every byte is what the files of the tag hold"
    said = warnings_of(results)
    assert len(said) == 1
    assert "masters that their weights were not made from" in said[0]


@pytest.mark.parametrize(("was", "now"), [(2, 3), (3, 2), (0, 2)])
def test_the_stage_changed(pools: Pools, tmp_path: Path, was: int, now: int) -> None:
    saved(pools, tmp_path, ["a"], stage=was)
    results = run(pools, "load", folder=str(tmp_path), engine={"stage": now}, settings={})
    refused(results, "LoadRefused", f"files of stage {was}", "stage changed")


@pytest.mark.parametrize("closed", ["the folder", "its parent", "the tag", "a shard"])
def test_no_permission_is_said(pools: Pools, closed: str) -> None:
    # Not in tmp_path: pytest closes its folders to everybody but the user.
    with tempfile.TemporaryDirectory() as outer:
        parent = Path(outer, "parent")
        folder = parent / "run"
        folder.mkdir(parents=True)
        saved(pools, folder, ["a"])
        for path in (Path(outer), parent, folder, folder / "a"):
            path.chmod(0o755)
        target = {
            "the folder": folder, "its parent": parent, "the tag": folder / "a", "a shard": damage.shard(folder / "a", 1)
        }[closed]  # fmt: skip
        target.chmod(0)
        try:
            results = run(pools, "load_as_nobody", folder=str(folder), engine=ZERO2)
            refused(results, "LoadRefused", "rank 1" if closed == "a shard" else "permission")
        finally:
            target.chmod(0o755)
        if closed == "the folder":
            restored(run(pools, "load_as_nobody", folder=str(folder), engine=ZERO2))


# --- errors that are swallowed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["load_state_dict", "_get_all_zero_checkpoints", "_get_all_zero_checkpoint_names"])
def test_swallowed_error_is_raised_on_every_rank(pools: Pools, tmp_path: Path, site: str) -> None:
    for one in values(run(pools, "swallowed", folder=str(tmp_path), site=site, settings={"verify": "off"})):
        assert one["error"] == ("OSError", "the disk is on fire")
        assert noted(one, "swallowed")
    traces = ",".join(["trace-load", "trace-zero", "trace-shards", "trace-shard-names", "trace-mp-shard-names",
                       "trace-shard-files", "trace-zero12", "trace-zero3", "trace-bf16"])  # fmt: skip
    settings = {"disable": traces, "verify": "off"}
    for one in values(run(pools, "swallowed", folder=str(tmp_path), site=site, settings=settings)):
        assert one["error"] is None, "without the traces nobody hears of it"


# --- weights of another tag (A3) --------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["oldest", "newest"])
@pytest.mark.parametrize(("tags", "asked"), [(["early", "late"], "early"), ([10, 20], 10)])
@pytest.mark.parametrize("latest", [True, False])
def test_weights_of_other_tag(
    pools: Pools, tmp_path: Path, role: str, tags: list[Any], asked: Any, latest: bool
) -> None:
    arguments = {"folder": str(tmp_path), "tags": tags, "asked": asked, "latest": latest}
    results = run(pools, "weights_of_tags", role, settings={}, **arguments)
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert one["weights_of"] == [str(asked)]
    assert len([text for text in warnings_of(results) if "partial load" in text]) == 1


def test_weights_of_other_tag_is_loud_without_the_repair(pools: Pools, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"folder": str(tmp_path), "tags": ["early", "late"], "asked": "early", "latest": True}
    for one in values(run(pools, "weights_of_tags", settings=None, **arguments)):
        assert one["weights_of"] == ["late"], "upstream takes them from `latest`"
    for one in values(run(pools, "weights_of_tags", settings={"disable": "weights-tag"}, **arguments)):
        assert one["error"][0] == "LoadIncomplete"
        assert "weights mismatch" in one["error"][1]


# --- partial loads ----------------------------------------------------------------------------------------------------

PARTIAL = [
    ({"load_optimizer_states": False}, ["masters", "moments", "optimizer_step"]),
    ({"load_optimizer_states": False, "load_module_only": True}, ["masters", "moments", "counters"]),
    ({"load_lr_scheduler_states": False}, ["lr_scheduler"]),
]


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(("arguments", "named"), PARTIAL)
def test_a_partial_load_is_one_warning(
    pools: Pools, tmp_path: Path, stage: int, arguments: dict[str, Any], named: list[str]
) -> None:
    engine = {"stage": stage, "scheduler": "warmup"}
    saved(pools, tmp_path, ["a"], **engine)
    results = run(pools, "load", folder=str(tmp_path), engine=engine, settings={}, arguments=arguments, probe=True)
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert one["moved"] == []
    said = warnings_of(results)
    assert len(said) == 1, said
    assert said[0].startswith("rank 0")
    for name in (*named, *arguments):
        assert name in said[0]


def test_partial_module_load(pools: Pools, tmp_path: Path) -> None:
    for one in values(run(pools, "load_renamed", settings={"verify": "off"}, folder=str(tmp_path))):
        assert one["error"][0] == "LoadIncomplete"
        assert "in the checkpoint, not restored" in one["error"][1]
    unguarded = {"disable": "module-load", "verify": "off"}
    for one in values(run(pools, "load_renamed", settings=unguarded, folder=str(tmp_path))):
        assert one["error"] is None


# --- verify_after_load ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [None, 0, 1])
def test_a_registered_check_that_raises_anywhere_raises_everywhere(
    pools: Pools, tmp_path: Path, failing: int | None
) -> None:
    found = values(run(pools, "user_check", folder=str(tmp_path), failing_rank=failing))
    assert [one["seen"] for one in found] == [[True], [True]]
    if failing is None:
        assert [one["error"] for one in found] == [None, None]
        return
    assert all("I do not like this" in one["error"][1] for one in found)
    assert found[failing]["error"][0] == "ValueError"


def test_verify_again_after_a_healthy_load(pools: Pools, tmp_path: Path) -> None:
    for one in values(run(pools, "verify_by_hand", folder=str(tmp_path), harm="", expected_step=3)):
        assert one["error"] is None
        assert set(one["outcomes"].values()) == {"restored"}
        assert len(one["largest"]["exp_avg"]) == 2, "largest |m| of each rank"
        assert min(one["largest"]["exp_avg_sq"]) > 0


@pytest.mark.parametrize(
    ("harm", "step", "texts"),
    [("moments", 3, ["moments", "rank 1"]), ("", 4, ["counters mismatch", "global_steps 4"])],
)
def test_verify_again_finds_what_changed(pools: Pools, tmp_path: Path, harm: str, step: int, texts: list[str]) -> None:
    for one in values(run(pools, "verify_by_hand", folder=str(tmp_path), harm=harm, expected_step=step)):
        assert one["error"] is not None
        assert one["error"][0] == "LoadIncomplete"
        for text in texts:
            assert text in one["error"][1]
