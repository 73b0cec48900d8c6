"""Whole checkpoints with one mutated file: a verdict, never another exception, and never `whole` for changed bytes.

`make fuzz` is the long lane, with 20,000 files.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from dspatch.offline.findings import WHOLE
from dspatch.offline.inspection import Wish, inspect
from dspatch.offline.page import page
from dspatch.offline.report import as_json
from tests.checkpoint.conftest import Saved
from tests.checkpoint.test_fuzz import FILES, mutated
from tests.offline.conftest import Special


@pytest.fixture
def folders(saved: Saved, special: Special, tmp_path: Path) -> list[Path]:
    """One tag each, of the forms that differ most."""
    sources = [saved("newest", "z2-rich"), saved("oldest", "z3-fp16"), saved("newest", "z0-fp32"),
               special("newest", "save_experts", ep_size=2), special("newest", "save_pipeline", stages=2)]  # fmt: skip
    made = []
    for number, source in enumerate(sources):
        tag = max(path for path in source.glob("global_step*") if path.is_dir())
        made.append(shutil.copytree(tag, tmp_path / str(number) / tag.name))
    return made


@pytest.mark.timeout(7200)
def test_a_tag_with_a_mutated_file_is_never_whole_under_deep(folders: list[Path]) -> None:
    chance = random.Random(20_27)
    for tag in folders:
        assert inspect(Wish(str(tag), deep=True)).verdict == WHOLE
    for number in range(FILES):
        tag = chance.choice(folders)
        path = chance.choice(sorted(tag.glob("*.pt")))
        raw = path.read_bytes()
        changed = mutated(raw, chance)
        path.write_bytes(changed)
        found = inspect(Wish(str(tag), deep=True))
        assert (found.verdict == WHOLE) == (changed == raw), (number, path.name)
        if number % 50 == 0:
            as_json(found, "x")
            page(found, "x")
        path.write_bytes(raw)
