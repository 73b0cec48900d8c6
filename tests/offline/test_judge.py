"""States that no engine on this machine writes: real records, with what such a file would say put in their place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspatch.offline import reading
from dspatch.offline.inspection import Wish, inspect
from dspatch.offline.judge import Judged, judge
from dspatch.offline.record import FileRecord
from dspatch.offline.survey import look
from tests.checkpoint.conftest import Saved
from tests.support import damage

Change = Callable[[list[FileRecord]], object]


def _judged(folder: Path, change: Change, swapped: int = -1) -> Judged:
    survey = look(folder)
    listing = survey.tags[0]
    listing.swapped = swapped
    records = reading.read_all(survey, reading.plan(survey, [listing.name]))
    change(records)
    return judge(listing, records, survey, [])


def _shards(records: list[FileRecord]) -> list[dict[str, Any]]:
    return [one.optimizer for one in records if one.optimizer is not None and one.kind == "shard"]


def _config(records: list[FileRecord], **entries: Any) -> None:
    for one in records:
        one.config.update(entries)


def _without_moments(records: list[FileRecord]) -> None:
    for one in _shards(records):
        one.update(names=[], states=[], entries=0)


def _set(records: list[FileRecord], kind: str, which: int = 0, **values: Any) -> None:
    chosen = [one for one in records if one.kind == kind][which]
    for name, value in values.items():
        setattr(chosen, name, value)


def _lossy(**config: Any) -> Change:
    return lambda records: (_config(records, **config), _without_moments(records))


#: name -> (build, change, id, verdict).
_CASES: dict[str, tuple[str, Change, str, str]] = {
    "Twin-Flow": ("z3-bf16", _lossy(ratio=0.5), "fault.G10", "incomplete"),
    "SuperOffload": ("z3-bf16", _lossy(super_offload=True), "fault.G11", "incomplete"),
    "ZenFlow": ("z2-bf16", lambda records: _config(records, zenflow=True), "fault.G12", "incomplete"),
    "no moments anywhere": ("z2-fp16", _without_moments, "state.missing", "incomplete"),
    "no moments on one rank": (
        "z3-fp16", lambda records: _shards(records)[1].update(names=[], states=[], entries=0), "state.missing", "incomplete"),
    "one moment on one rank": (
        "z2-bf16", lambda records: _shards(records)[0]["states"][0].pop("exp_avg_sq"), "state.missing", "incomplete"),
    "moments too short": (
        "z2-bf16", lambda records: _shards(records)[0]["states"][0].update(exp_avg=3), "state.shape", "damaged"),
    "no groups": ("z2-bf16", lambda records: _shards(records)[0].update(groups=[]), "state.missing", "incomplete"),
    "no loss scaler": (
        "z2-fp16", lambda records: [one.update(scaler={}) for one in _shards(records)], "state.missing", "incomplete"),
    "other loss scale": ("z2-fp16", lambda records: _shards(records)[0]["scaler"].update(cur_scale=1), "mixed.save", "damaged"),
    "other stage": ("z2-fp16", lambda records: _set(records, "shard", stage=1), "mixed.stage", "damaged"),
    "step as a vector": (
        "z2-bf16", lambda records: _shards(records)[1].update(elastic=True, odd_step=True), "fault.F8", "damaged"),
    "no counters": ("z3-bf16", lambda records: _set(records, "model_part", 1, skipped_steps=None), "counters.missing",
                    "incomplete"),
    "no scheduler": ("z2-rich", lambda records: _set(records, "model", has_scheduler=False), "scheduler.missing", "incomplete"),
    "no weights": ("z2-bf16", lambda records: _set(records, "model", has_module=False), "weights.missing", "incomplete"),
    "some weights": ("z2-bf16", lambda records: _set(records, "model", lacks=[1, "last.bias"]), "weights.missing", "incomplete"),
    "other samples": ("z3-bf16", lambda records: _set(records, "model_part", 1, global_samples=7), "mixed.save", "damaged"),
    "other parameters": ("z3-bf16", lambda records: _set(records, "model_part", 1, shapes_digest="x"), "mixed.save", "damaged"),
    "a shard without state": ("z2-bf16", lambda records: _set(records, "shard", 1, optimizer=None), "file.content", "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", _CASES)
def test_what_files_could_say(name: str, saved: Saved) -> None:
    build, change, id, verdict = _CASES[name]
    folder = saved("newest", build)
    assert [one.id for one in _judged(folder, lambda records: None).findings] == []

    found = _judged(folder, change)

    assert id in {one.id for one in found.findings}, found.findings
    assert found.verdict == verdict


def test_state_on_nvme_must_be_in_the_tag(saved: Saved) -> None:
    def swapped_out(records: list[FileRecord]) -> None:
        _config(records, offload="nvme")
        for one in _shards(records):
            one.update(masters=[0], padded=[0], states=[{"exp_avg": 0, "exp_avg_sq": 0}])

    folder = saved("newest", "z3-bf16")
    assert _judged(folder, swapped_out, swapped=6).verdict == "whole"
    for number in (-1, 0):
        found = _judged(folder, swapped_out, swapped=number)
        assert (found.verdict, found.findings[0].id) == ("incomplete", "state.missing")


def test_the_same_partition_on_two_ranks_is_right_with_mics(saved: Saved) -> None:
    def copy_sums(records: list[FileRecord]) -> None:
        shards = [one for one in records if one.kind == "shard"]
        shards[1].sums = shards[0].sums

    folder = saved("newest", "z3-bf16")
    assert [one.id for one in _judged(folder, copy_sums).findings] == ["shard.twin"]
    assert _judged(folder, lambda records: (copy_sums(records), _config(records, mics_shard_size=2))).findings == []
    # Equal because there is nothing but zeros, as where ranks hold padding only.
    from dspatch.checkpoint.content import crc_of_zeros

    def zeros(records: list[FileRecord]) -> None:
        for one in records:
            one.sums = [[crc_of_zeros(size), size] for _, size in one.sums]

    assert _judged(folder, zeros).findings == []


def test_checksums_of_parts_of_a_record(saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dspatch.offline import deep

    monkeypatch.setattr(deep, "_PORTION", 64)
    folder = shutil.copytree(saved("newest", "z2-bf16"), tmp_path / "ckpt")
    assert inspect(Wish(str(folder), deep=True)).verdict == "whole"
    damage.flip_bit(damage.shard(folder / "global_step5", 1))
    assert [one.id for one in inspect(Wish(str(folder), deep=True)).tags[0].findings] == ["file.crc"]
