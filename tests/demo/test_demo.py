"""The demo, on real ranks: it says what it saw, and its exit code tells a resume that went by uncaught."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dspatch.demo.launch import JobFailed, Outcome, Tree, run
from dspatch.demo.parts import PARTS, SAVED, SHOWN, Shown
from dspatch.demo.picture import draw
from tests.support.paths import ROOT
from tests.support.trees import tree


def demo(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    import os

    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DSPATCH")}
    return subprocess.run(
        [sys.executable, "-m", "dspatch", "demo", *arguments],
        capture_output=True, text=True, timeout=280, check=False, cwd=ROOT, env={**inherited, **environ},
    )  # fmt: skip


def test_one_part_on_real_ranks(tmp_path: Path) -> None:
    found = tree("stage0_loses_moments")
    done = demo("--only", "b", "--stage0", f"{found.path},{found.extensions}", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "upstream, untouched release" in done.stdout
    assert "reported success, is no restore" in done.stdout
    assert "stopped: the same LoadIncomplete on all 2 ranks" in done.stdout
    assert "moments absent" in done.stderr
    assert (tmp_path / "resume.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_tree_it_says_what_it_cannot_show(tmp_path: Path) -> None:
    done = demo("--out", str(tmp_path))
    assert done.returncode == 3
    assert "no release has this fault" in done.stderr
    assert "has no deepspeed" in done.stderr
    assert not list(tmp_path.iterdir())


def test_ranks_that_come_to_nothing_are_an_error_with_their_output(tmp_path: Path) -> None:
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("raise ImportError('half a DeepSpeed')\n")
    with pytest.raises(JobFailed, match="half a DeepSpeed"):
        run(Tree(str(tmp_path)), 2, {"dspatch": False}, {"DSPATCH": "off"})


REFERENCE = [1.0 / (step + 1) for step in range(SAVED + SHOWN)]
AFTER = REFERENCE[SAVED - 1 :]


@pytest.mark.parametrize(
    ("without", "lossy"),
    [(Outcome(AFTER, [None, None], []), False), (Outcome([2.0, *AFTER[1:]], [None, None], []), True),
     (Outcome([], ["ValueError: x"] * 2, []), False)],
)  # fmt: skip
def test_lossy_is_a_resume_that_came_up_and_is_another_run(without: Outcome, lossy: bool) -> None:
    assert Shown(PARTS[0], REFERENCE, without, {}).lossy is lossy


def test_a_picture_of_a_stop_and_of_a_curve(tmp_path: Path) -> None:
    right, stopped = Outcome(AFTER, [None], []), Outcome([], ["LoadIncomplete: x"], [])
    shown = Shown(PARTS[0], REFERENCE, Outcome([2.0, *AFTER[1:]], [None], []), {"resolve": right, "error": stopped})
    draw([shown], tmp_path / "one.png")
    draw([shown, shown], tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > (tmp_path / "one.png").stat().st_size > 10_000
