"""Reading in parts and merging them says what one run says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.conftest import Saved
from tests.offline.conftest import Copied
from tests.offline.looking import look, run
from tests.support import damage


def _parts(folder: Path, where: Path, count: int, *arguments: str) -> list[str]:
    names = []
    for number in range(1, count + 1):
        code, output, errors = run(str(folder), "--part", f"{number}/{count}", *arguments)
        assert (code, errors) == (0, "")
        (where / f"part-{number}.json").write_text(output)
        names.append(str(where / f"part-{number}.json"))
    return names


def _timeless(data: dict[str, Any]) -> dict[str, Any]:
    if data["deep"] is not None:
        data["deep"]["seconds"] = 0
    return data


@pytest.mark.parametrize("deep", [(), ("--deep",)])
@pytest.mark.parametrize("build", ["z2-rich", "z3-bf16"])
def test_parts_say_what_one_run_says(build: str, deep: tuple[str, ...], copied: Copied, tmp_path: Path) -> None:
    folder = copied("newest", build)
    for count in (1, 3, 9):
        merged = look("--merge", *_parts(folder, tmp_path, count, *deep))
        assert _timeless(merged.data) == _timeless(look(folder, *deep).data)
        assert merged.code == 0
    damage.flip_bit(damage.shard(folder / "global_step5", 0))
    damage.shard(folder / "global_step3", 0).unlink()
    merged = look("--merge", *_parts(folder, tmp_path, 3, "--all", *deep))
    assert _timeless(merged.data) == _timeless(look(folder, "--all", *deep).data)
    assert merged.code == 1


def test_parts_that_do_not_belong_together(saved: Saved, copied: Copied, tmp_path: Path) -> None:
    folder = copied("newest", "z2-bf16")
    one, two, three = _parts(folder, tmp_path, 3)
    assert "part 2 of 3 is not there" in run("--merge", one, three)[2]
    assert "twice" in run("--merge", one, two, three, three)[2]
    (tmp_path / "other").mkdir()
    other = _parts(saved("newest", "z3-bf16"), tmp_path / "other", 3)
    assert "saw other files" in run("--merge", one, other[1], three)[2]
    (tmp_path / "text").write_text("{}")
    for name, word in ((str(tmp_path / "text"), "is no file that"), (str(tmp_path / "gone"), "No such file")):
        code, output, errors = run("--merge", name)
        assert (code, output) == (3, "")
        assert word in errors


def test_the_answer_for_other_ranks_comes_from_parts_too(copied: Copied, tmp_path: Path) -> None:
    folder = copied("newest", "z2-bf16")
    names = _parts(folder, tmp_path, 2)
    merged = look("--merge", *names, "--for-ranks", "4", "--for-stage", "2")
    assert merged.data["resume"]["answer"] == "after conversion"
