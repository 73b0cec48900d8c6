"""Healthy checkpoints of every form: `whole`, nothing to say, and the right facts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.conftest import BUILDS, Saved
from tests.offline.conftest import Special
from tests.offline.looking import healthy, look, run
from tests.support.paths import ROOT

_ROLES = ("oldest", "newest")

#: scenario, arguments; what no build of tests/checkpoint covers.
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "experts": ("save_experts", {"ep_size": 1}),
    "experts over ranks": ("save_experts", {"ep_size": 2}),
    "pipeline of one stage": ("save_pipeline", {"stages": 1, "stage": 1, "precision": "bf16"}),
    "pipeline": ("save_pipeline", {"stages": 2}),
    "pipeline with ZeRO": ("save_pipeline", {"stages": 2, "stage": 1, "precision": "bf16"}),
    "before the first step": ("save", {"stage": 2, "steps": 0}),
    "SGD": ("save", {"stage": 2, "optimizer": "sgd"}),
    "momentum": ("save", {"stage": 3, "optimizer": "sgd_momentum"}),
    "Lion": ("save", {"stage": 2, "optimizer": "lion"}),
    "Adagrad": ("save", {"stage": 1, "precision": "fp16", "optimizer": "adagrad"}),
    "unused parameters": ("save", {"stage": 2, "model": {"unused": True}}),
    "offloaded": ("save", {"stage": 2, "offload": "cpu"}),
    "without frozen": ("save_without_frozen", {"stage": 2, "model": {"frozen": True}}),
    "without frozen at stage 3": ("save_without_frozen", {"stage": 3, "model": {"frozen": True}}),
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("role", _ROLES)
def test_every_tag_is_whole(role: str, build: str, saved: Saved) -> None:
    # Old releases leave gradients uninitialised on CPU at stage 3, so their moments may be NaN in a healthy run.
    deep = () if role == "oldest" and BUILDS[build]["stage"] == 3 else ("--deep",)
    found = look(saved(role, build), "--all", *deep)

    healthy(found)
    assert [one["tag"] for one in found.data["tags"]] == ["global_step5", "global_step3"]
    assert found.data["newest_whole"] == "global_step5"
    if deep:
        assert found.data["deep"]["done"] == found.data["deep"]["total"] > 0
        assert not found.data["deep"]["stopped"]


@pytest.mark.parametrize("name", _OTHERS)
@pytest.mark.parametrize("role", _ROLES)
def test_other_forms_are_whole(role: str, name: str, special: Special) -> None:
    scenario, kwargs = _OTHERS[name]
    healthy(look(special(role, scenario, **kwargs), "--deep"))


def test_old_experts_over_ranks_at_stage_0_are_whole(special: Special) -> None:
    healthy(look(special("newest", "save_experts", ep_size=2, stage=0), "--deep"))


@pytest.fixture(scope="module")
def universal(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stages 2 and 3, converted by the newest release."""
    from tests.support.trees import tree

    made = tmp_path_factory.mktemp("universal")
    environment = {"PYTHONPATH": str(tree("newest").path), "DS_ACCELERATOR": "cpu", "PATH": "/usr/bin:/bin"}
    for stage in (2, 3):
        source, target = saved("newest", f"z{stage}-bf16") / "global_step3", made / f"z{stage}" / "step3_universal"
        target.parent.mkdir()
        command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", str(source)]
        command += ["--output_folder", str(target), "--inject_missing_state"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    return made


@pytest.mark.parametrize("stage", [2, 3])
def test_universal_folders(stage: int, universal: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(universal / f"z{stage}", tmp_path / "u")
    found = look(folder, "--deep")
    healthy(found)
    assert (found.tag["tag"], found.tag["facts"]["universal"]) == ("step3_universal", True)

    (folder / "step3_universal/zero/last.weight/exp_avg.pt").unlink()
    found = look(folder)
    assert (found.code, found.data["verdict"]) == (1, "incomplete")
    assert found.finding("universal.missing")["found"] == "exp_avg_sq.pt, fp32.pt" + (", step.pt" if stage == 2 else "")


def test_facts_of_a_rich_checkpoint(saved: Saved) -> None:
    for stage in (2, 3):
        facts = look(saved("newest", f"z{stage}-rich"), "--tag", "global_step3").tag["facts"]
        assert (facts["stage"], facts["precision"], facts["data_parallel"], facts["model_parallel"]) == (
            stage,
            "bf16",
            2,
            1,
        )
        assert (facts["global_steps"], facts["skipped_steps"], facts["optimizer_steps"]) == (3, 0, [3.0])
        assert (facts["optimizer"], facts["groups"], facts["weight_decay"]) == ("Adam", 2, [0.05, 0.0])
        assert (facts["scheduler"], facts["client_keys"]) == (True, ["epoch", "note"])
        assert facts["parameters"] == {"trained": 447, "frozen": 204, "frozen_share": round(204 / 651, 4)}
        assert (
            facts["components"]["moments"]["elements"] == 2 * facts["components"]["masters"]["elements"] or stage == 2
        )
        assert facts["files_expected"] == facts["files_found"] == stage + 1


def test_facts_of_experts_and_pipelines(special: Special) -> None:
    experts = look(special("newest", "save_experts", ep_size=2)).tag["facts"]
    assert (experts["experts"], experts["expert_parallel"]) == ([4], 2)
    assert experts["components"]["experts"]["tensors"] == 8
    pipeline = look(special("newest", "save_pipeline", stages=2)).tag["facts"]
    assert (pipeline["pipeline"], pipeline["data_parallel"], pipeline["model_parallel"]) == (True, 1, 2)


def test_neither_torch_nor_deepspeed_is_imported(saved: Saved) -> None:
    program = (
        "import sys; from dspatch.cli.main import main\n"
        "code = main(['inspect', sys.argv[1], '--for-ranks', '4', '--for-stage', '2'])\n"
        "heavy = {'torch', 'deepspeed', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(saved("newest", "z2-bf16"))],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "global_step5: whole" in done.stdout


def test_people_get_every_fact_without_rich(saved: Saved) -> None:
    code, output, _ = run(str(saved("newest", "z2-rich")), "--deep")
    assert code == 0
    for words in (
        "global_step5: whole", "ZeRO stage 2, bf16, 2 data-parallel ranks", "step 5, 0 skipped, 40 samples",
        "Adam, 2 groups", "scheduler, loss scale", "447 trained, 204 frozen (31.3%)", "3 of 3 expected",
        "mp_rank_00_model_states.pt", "newest whole tag: global_step5", "3 of 3 files entirely",
    ):  # fmt: skip
        assert words in output
    assert "\x1b" not in output
