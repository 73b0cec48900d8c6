"""Releases that no longer run beside a torch of today: what they saved is judged as well.

The archives in `golden/` were written by two ranks of the release that each is named after; `golden/make.py` is how.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from packaging.version import Version

from dspatch.checkpoint import layout
from dspatch.checkpoint.shard import facts_of, rank_of
from dspatch.checkpoint.unpickle import read_tree
from tests.offline.looking import broken, healthy, look
from tests.support import damage, trees

_GOLDEN = Path(__file__).parent / "golden"
RELEASES = sorted(path.name.removesuffix(".tar.xz") for path in _GOLDEN.glob("*.tar.xz"))


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A release, and the folder with its checkpoints."""
    with tarfile.open(_GOLDEN / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return request.param, tmp_path


def test_they_are_older_than_what_runs_and_small() -> None:
    assert len(RELEASES) >= 4
    assert max(map(Version, RELEASES)) < Version(trees.roles()["oldest"])
    assert all(path.stat().st_size < 100_000 for path in _GOLDEN.iterdir())


def test_every_form_is_whole(release: tuple[str, Path]) -> None:
    version, folder = release
    builds = sorted(path.name for path in folder.iterdir() if (path / "latest").is_file())
    assert {"experts", "z0-bf16", "z0-fp16", "z0-fp32", "z1-bf16", "z2-fp16", "z3-fp16"} <= set(builds)
    for build in builds:
        # Gradients of stage 3 are uninitialised on a CPU, so moments may be NaN in a healthy run.
        found = look(folder / build, *(() if build.startswith("z3") else ("--deep",)))
        healthy(found)
        facts = found.tag["facts"]
        stage, _, precision = (build if build != "experts" else "z2-fp16").partition("-")
        assert (facts["ds_version"], facts["stage"], facts["precision"]) == (version, int(stage[1]), precision), build
        assert (facts["data_parallel"], facts["global_steps"], facts["scheduler"]) == (2, 3, True)
        assert (facts["optimizer"], facts["client_keys"]) == ("Adam", ["epoch"])
        assert facts["components"]["moments"]["elements"] > 0
        assert (facts["experts"] == [4]) == (build == "experts")


def test_partitions_tell_their_rank(release: tuple[str, Path]) -> None:
    tag = release[1] / "z2-fp16" / "global_step3"
    model = facts_of(read_tree(tag / layout.model_file(2)))
    for rank in (0, 1):
        shard = facts_of(read_tree(damage.shard(tag, rank)))
        assert shard.optimizer is not None and shard.optimizer.style == "zero12"
        assert rank_of(shard, model) in ([rank], None)


def test_stage_0_in_bf16_is_sharded(release: tuple[str, Path]) -> None:
    """BF16_Optimizer partitions at stage 0, too, and its shards are part of the tag."""
    tag = release[1] / "z0-bf16" / "global_step3"
    shard = facts_of(read_tree(damage.shard(tag, 1)))
    assert shard.optimizer is not None and shard.optimizer.style == "bf16"
    damage.shard(tag, 1).unlink()
    assert broken(look(tag.parent), "file.missing", "incomplete")["rank"] == 1


@pytest.mark.parametrize("build", ["z2-fp16", "z3-fp16"])
def test_damage_is_found(release: tuple[str, Path], build: str) -> None:
    folder = release[1] / build
    tag = folder / "global_step3"
    damage.swap_shards(tag)
    broken(look(folder), "shard.other-rank")
    damage.swap_shards(tag)
    original = damage.shard(tag, 0).read_bytes()
    damage.flip_bit(damage.shard(tag, 0))
    broken(look(folder, "--deep"), "file.crc")
    damage.cut(damage.shard(tag, 0))
    broken(look(folder), "file.cut")
    damage.shard(tag, 0).write_bytes(original)
    damage.model_file(tag, 1).unlink()
    broken(look(folder), "file.missing", "incomplete")
