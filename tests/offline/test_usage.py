"""Where one may point it, what it answers for another job, and bad input: one clear sentence and the right exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dspatch.checkpoint import layout
from tests.checkpoint import hostile
from tests.checkpoint.conftest import Saved
from tests.offline.browsing import fits, words_of
from tests.offline.conftest import Copied, Special
from tests.offline.looking import healthy, look, run
from tests.support import damage
from tests.support.paths import ROOT


def test_one_level_off_is_said_and_done(saved: Saved, tmp_path: Path) -> None:
    folder = saved("newest", "z2-bf16")
    for place, words in (
        (folder / "global_step3", "is a tag folder"),
        (folder / "global_step3" / "mp_rank_00_model_states.pt", "is one file of the tag global_step3"),
    ):
        found = look(place)
        healthy(found)
        assert (found.tag["tag"], found.data["folder"]) == ("global_step3", str(folder))
        assert words in found.data["notes"][0]
    (tmp_path / "runs").mkdir()
    shutil.copytree(folder, tmp_path / "runs" / "one")
    found = look(tmp_path / "runs")
    healthy(found)
    assert "one level above" in found.data["notes"][0]


def test_newest_whole_prints_just_the_tag(copied: Copied) -> None:
    folder = copied("newest", "z3-bf16")
    assert run(str(folder), "--newest-whole") == (0, "global_step5\n", "")
    damage.cut(damage.shard(folder / "global_step5", 1))
    assert run(str(folder), "--newest-whole") == (0, "global_step3\n", "")
    damage.empty(damage.shard(folder / "global_step3", 1))
    code, output, errors = run(str(folder), "--newest-whole")
    assert (code, output) == (1, "") and "no tag" in errors


def test_newest_whole_under_deep_reads_older_tags_deeply_too(copied: Copied) -> None:
    folder = copied("newest", "z2-bf16")
    for tag in ("global_step5", "global_step3"):
        damage.flip_bit(damage.shard(folder / tag, 0))
    assert run(str(folder), "--newest-whole")[0] == 0
    assert run(str(folder), "--newest-whole", "--deep")[:2] == (1, "")


@pytest.mark.parametrize(
    ("build", "ranks", "stage", "answer", "words"),
    [
        ("z2-bf16", 2, 2, "yes", "those of the save"),
        ("z2-bf16", 2, 1, "yes", "the same files"),
        ("z3-bf16", 2, 3, "yes", "those of the save"),
        ("z0-fp32", 16, 0, "yes", "whole optimizer state"),
        ("z2-bf16", 8, 2, "after conversion", "--output_folder"),
        ("z3-bf16", 4, 3, "after conversion", "ds_to_universal"),
        ("z2-bf16", 2, 3, "weights only", "zero_to_fp32.py"),
        ("z3-bf16", 4, 1, "weights only", "zero_to_fp32.py"),
        ("z0-fp32", 2, 2, "weights only", "load_optimizer_states=False"),
        ("z3-bf16", 2, 0, "weights only", "zero_to_fp32.py"),
    ],
)
def test_can_another_job_resume_it(build: str, ranks: int, stage: int, answer: str, words: str, saved: Saved) -> None:
    folder = saved("newest", build)
    found = look(folder, "--for-ranks", str(ranks), "--for-stage", str(stage))
    told = found.data["resume"]
    assert (told["answer"], found.code) == (answer, 0 if answer == "yes" else 1)
    assert words in json.dumps(told)
    assert bool(told["commands"]) == ("ds_to_universal" in json.dumps(told) or "zero_to_fp32" in json.dumps(told))


def test_the_command_it_names_does_the_conversion(copied: Copied, special: Special) -> None:
    from tests.support.trees import tree

    folder = copied("newest", "z2-fp16")
    (command,) = look(folder, "--for-ranks", "4", "--for-stage", "2").data["resume"]["commands"]
    environment = {"PYTHONPATH": str(tree("newest").path), "DS_ACCELERATOR": "cpu", "PATH": os.environ["PATH"]}
    command = command.replace("python ", f"{sys.executable} ", 1)
    done = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = look(folder, "--tag", "global_step5_universal", "--for-ranks", "4", "--for-stage", "2")
    assert (found.code, found.data["verdict"], found.data["resume"]["answer"]) == (0, "whole", "yes")
    # What the converter cannot do is not offered.
    for kwargs, why in (({"optimizer": "lion"}, "Adam only"), ({"zero": {"round_robin_gradients": True}}, "C14")):
        told = look(special("newest", "save", stage=2, **kwargs), "--for-ranks", "4", "--for-stage", "2").data["resume"]
        assert told["answer"] == "weights only" and why in told["why"]


def test_a_damaged_tag_is_resumed_by_nobody(copied: Copied) -> None:
    folder = copied("newest", "z2-bf16")
    damage.cut(damage.shard(folder / "global_step5", 1))
    assert look(folder, "--for-ranks", "2", "--for-stage", "2").data["resume"]["answer"] == "no"


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("x", "--merge", "y"), ("x", "--for-ranks", "2"), ("x", "--for-ranks", "0", "--for-stage", "1"),
        ("x", "--for-ranks", "2", "--for-stage", "4"), ("x", "--part", "3/2"), ("x", "--part", "a/b"), ("x", "--part", "0/1"),
        ("x", "--tag", "a", "--all"), ("x", "--part", "1/2", "--newest-whole"), ("x", "--threads", "0"), ("x", "--nonsense"),
    ],
)  # fmt: skip
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    code, output, errors = run(*arguments)
    assert (code, output) == (2, "")
    assert "usage:" in errors


def test_what_cannot_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name, words in (("gone", "there is no folder"), ("file", "is a file"), ("a\nb", "there is no folder 'a")):
        code, output, errors = run(str(tmp_path / name))
        assert (code, output) == (3, "")
        assert words in errors.replace(str(tmp_path) + "/", "") and errors.count("\n") == 1


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert (found.code, found.data["verdict"]) == (1, "not a DeepSpeed checkpoint")
    assert "it is empty" in found.finding("folder.no-tag")["text"]
    for number in range(10_000):
        (tmp_path / f"{number}").touch()
    found = look(tmp_path)
    assert (found.code, found.data["verdict"]) == (1, "not a DeepSpeed checkpoint")
    (tmp_path / ".metadata").touch()
    assert "DCP" in look(tmp_path).finding("folder.no-tag")["text"]


def test_a_tag_that_is_not_there(saved: Saved) -> None:
    found = look(saved("newest", "z2-bf16"), "--tag", "global_step4")
    assert (found.code, found.data["verdict"], found.data["tags"]) == (1, "incomplete", [])
    assert "global_step5, global_step3" in found.finding("tag.absent")["found"]
    for tag in ("../x", "/etc", "a\0b", ""):
        assert look(saved("newest", "z2-bf16"), "--tag", tag).code == 1


def test_ten_thousand_empty_shards_are_one_readable_answer(tmp_path: Path) -> None:
    tag = tmp_path / "step1"
    tag.mkdir()
    for rank in range(10_000):
        (tag / layout.shard_file(rank)).touch()
    code, output, _ = run(str(tmp_path))
    assert code == 1
    assert "9,950 more files like this" in output
    assert output.count("\n") < 500


def test_odd_names(copied: Copied, tmp_path: Path) -> None:
    folder = copied("newest", "z2-bf16")
    name = "step 5\n\x1b[31m é"
    (folder / "global_step5").rename(folder / name)
    damage.set_latest(folder, "global_step3")
    (folder / name / "notes \x1b[2J.txt").write_text("x")
    code, output, _ = run(str(folder), "--tag", name, "--html", str(tmp_path / "page.html"))
    assert code == 0
    assert "\x1b" not in output and "step 5\\n\\x1b[31m é: whole" in output
    assert "\x1b" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_reader_that_goes_away_is_no_error(saved: Saved) -> None:
    command = f"{sys.executable} -m dspatch inspect {saved('newest', 'z2-bf16')} --all --json | head -c 10"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ('{\n  "schem', "")


def test_files_of_torchs_older_format(tmp_path: Path) -> None:
    import torch

    tag = tmp_path / "step1"
    tag.mkdir()
    state = {"module": {"w": torch.ones(3)}, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1, "momentum": 0.0}]}}
    state |= {"global_steps": 1, "global_samples": 4, "skipped_steps": 0, "dp_world_size": 1, "mp_world_size": 1,
              "ds_version": "x", "ds_config": {}}  # fmt: skip
    torch.save(state, tag / layout.model_file(0), _use_new_zipfile_serialization=False)
    (tmp_path / "latest").write_text("step1")
    found = look(tmp_path, "--deep")
    assert (found.code, found.data["verdict"], found.ids) == (0, "whole", set())
    assert found.finding("deep.no-checksum")
    damage.cut(tag / layout.model_file(0), 0.95)
    assert look(tmp_path).data["verdict"] == "damaged"


def test_links_out_of_the_folder_are_noted(copied: Copied, tmp_path: Path) -> None:
    folder = copied("newest", "z2-bf16")
    shard = damage.shard(folder / "global_step5", 1)
    shutil.move(shard, tmp_path / "blob")
    shard.symlink_to(tmp_path / "blob")
    found = look(folder)
    assert (found.code, found.ids) == (0, set())
    assert shard.name in found.finding("file.link")["text"]


# --- colour, pages, stopping ------------------------------------------------------------------------------------------


def test_colour_only_for_a_terminal_and_not_against_no_color(saved: Saved) -> None:
    pty = pytest.importorskip("pty")
    pytest.importorskip("rich")
    folder = str(saved("newest", "z2-bf16"))
    for variable, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        main, side = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", **variable}
        command = [sys.executable, "-m", "dspatch", "inspect", folder]
        with subprocess.Popen(command, cwd=ROOT, stdout=side, stderr=subprocess.DEVNULL, env=environment) as process:
            os.close(side)
            shown = b""
            while True:
                try:
                    block = os.read(main, 65536)
                except OSError:
                    break
                if not block:
                    break
                shown += block
            assert process.wait(60) == 0
        os.close(main)
        assert b"global_step5: whole" in shown
        assert (b"\x1b[" in shown) == coloured


def test_the_page_needs_nothing_and_says_everything(copied: Copied, tmp_path: Path) -> None:
    folder = copied("newest", "z2-rich")
    damage.cut(damage.shard(folder / "global_step5", 1))
    (folder / "global_step5" / "<script>alert(1)<x>").touch()
    target = tmp_path / "page.html"
    code, _, _ = run(str(folder), "--deep", "--all", "--html", str(target), "--for-ranks", "2", "--for-stage", "2")
    assert code == 1
    words = words_of(target)
    for one in ("damaged", "global_step5", "file.cut", "rank 1: cut", "rank 0: ok", "moments", "Magnitudes of moments",
                "Newest whole tag:", "2 ranks at stage 2: no"):  # fmt: skip
        assert one in words


@pytest.mark.parametrize("width", [390, 1100])
def test_the_page_fits_a_phone_and_a_desk(width: int, copied: Copied, tmp_path: Path) -> None:
    folder = copied("newest", "z2-rich")
    damage.shard(folder / "global_step5", 1).unlink()
    page = tmp_path / "page.html"
    run(str(folder), "--deep", "--all", "--html", str(page))
    fits(page, width)


def test_a_page_that_cannot_be_written(saved: Saved, tmp_path: Path) -> None:
    code, output, errors = run(str(saved("newest", "z2-bf16")), "--html", str(tmp_path / "no" / "page.html"))
    assert (code, output) == (3, "") and "cannot be written" in errors


def test_a_deep_check_that_is_stopped_says_what_it_covered(saved: Saved) -> None:
    from dspatch.offline.deep import Check
    from dspatch.offline.inspection import Wish, inspect
    from dspatch.offline.report import as_json

    def stop(done: int, total: int) -> None:
        check.stop()

    check = Check(threads=1, progress=stop)
    found = inspect(Wish(str(saved("newest", "z2-bf16")), deep=True), check=check)

    assert found.deep is not None and found.deep.stopped and found.deep.done < found.deep.total
    data = as_json(found, "x")
    assert data["exit"] == 1
    assert [one["id"] for one in data["findings"]] == ["deep.not-covered"]
    assert data["newest_whole"] is None


def test_without_numpy_the_values_are_found_all_the_same(special: Special, monkeypatch: pytest.MonkeyPatch) -> None:
    from dspatch.offline import scan

    monkeypatch.setattr(scan, "_numpy", lambda: None)
    for value in ("nan", "-inf"):
        found = look(special("newest", "save_poisoned", stage=2, value=float(value)), "--deep")
        assert found.finding("values.not-finite")["rank"] == 1
    assert look(special("newest", "save_poisoned", stage=1, value=0.0, everything=True), "--deep").finding(
        "moments.all-zero"
    )


def test_names_in_pickles(tmp_path: Path) -> None:
    from dspatch.checkpoint.references import dangerous, unknown
    from dspatch.checkpoint.unpickle import read_tree

    for name, make in hostile.EXECUTING.items():
        hostile.write_pickle(tmp_path / "x.pt", make(tmp_path))
        assert dangerous(read_tree(tmp_path / "x.pt").names), name
    for harmless in (("torch._utils", "_rebuild_tensor_v2"), ("collections", "OrderedDict"), ("builtins", "set"),
                     ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"), ("mine", "Config")):  # fmt: skip
        assert not dangerous([harmless])
    assert unknown([("mine", "Config"), ("torch", "Size")]) == ["mine.Config"]
    for harmful in (("builtins", "getattr"), ("torch", "load"), ("numpy", "load"), ("functools", "partial"),
                    ("collections", "namedtuple.__globals__"), ("torch.storage", "_load_from_bytes")):  # fmt: skip
        assert dangerous([harmful])
