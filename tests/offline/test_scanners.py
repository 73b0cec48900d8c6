"""Other scanners of pickles on the same hostile files: what they flag is named here, too."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from dspatch.checkpoint import references
from dspatch.offline.record import FileRecord, Models, read
from tests.checkpoint import hostile


def _record(path: Path) -> FileRecord:
    return read("step1", path.parent, path.name, path.stat().st_size, Models())


def _named(record: FileRecord) -> bool:
    return bool(record.damage or record.dangerous or record.unknown)


def _files(folder: Path) -> dict[str, Path]:
    made = {name: folder / f"{name}.pt" for name in hostile.EXECUTING}
    for name, path in made.items():
        hostile.write_pickle(path, hostile.EXECUTING[name](folder))
    (folder / "more").mkdir()
    archives = hostile.write_archives(folder / "more")
    del archives["deflated_bomb"]  # it takes other scanners most of a minute
    return {**made, **archives, **hostile.write_tensors(folder / "more")}


def test_nothing_that_picklescan_flags_passes_unnamed(tmp_path: Path) -> None:
    scanner = pytest.importorskip("picklescan.scanner")
    flagged = 0
    for name, path in _files(tmp_path).items():
        try:
            issues = scanner.scan_file_path(str(path)).issues_count
        except Exception:  # it does not cope with broken archives
            issues = 1
        flagged += bool(issues)
        assert not issues or _named(_record(path)), name
    assert flagged >= len(hostile.EXECUTING)
    for module, names in scanner._unsafe_globals.items():
        # A star stands for the whole module, which for `uuid` and the like has harmless names, too.
        for called in (names,) if isinstance(names, str) and names != "*" else ("run",) if names == "*" else names:
            listed = [(module, called)]
            assert references.dangerous(listed) or references.unknown(listed), listed


def test_nothing_that_fickling_flags_passes_unnamed(tmp_path: Path) -> None:
    fickle = pytest.importorskip("fickling.fickle")
    from fickling.analysis import Severity, check_safety

    for name, make in hostile.EXECUTING.items():
        data = make(tmp_path)
        hostile.write_pickle(tmp_path / "x.pt", data)
        severity = check_safety(fickle.Pickled.load(io.BytesIO(data))).severity
        assert severity > Severity.LIKELY_SAFE, name
        assert _record(tmp_path / "x.pt").dangerous, name
