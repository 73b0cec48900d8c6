"""Nothing in a hostile file runs, nothing takes more than a second or 200 MB, and each one is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dspatch.checkpoint.archive import Archive
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.unpickle import read_tree, walk
from tests.checkpoint import hostile
from tests.support.paths import ROOT

_SECONDS, _BYTES = 1.0, 200 << 20

#: Reads one file in a process of its own and says what it took: CPU time, which other processes do not lengthen, and
#: how far its memory peak rose.
_MEASURE = """
import json, sys, time
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.unpickle import read_tree
def peak():  # not ru_maxrss: a process takes that of its parent along through fork and exec
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
before = peak()
began = time.process_time()
try:
    read_tree(sys.argv[1]); outcome = "read"
except Damaged as error:
    outcome = error.kind
seconds = time.process_time() - began
print(json.dumps([outcome, seconds, peak() - before]))
"""


@pytest.mark.parametrize("name", hostile.EXECUTING)
def test_nothing_of_a_pickle_runs_and_the_name_is_kept(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    hostile.write_pickle(path, hostile.EXECUTING[name](tmp_path))

    tree = read_tree(path)

    assert not (tmp_path / hostile.MARK).exists()
    named = {f"{module}.{called}" for module, called in tree.names}
    assert named & {
        "os.system", "posix.system", "builtins.eval", "__builtin__.eval", "_pickle.loads", "builtins.getattr",
        "builtins.exec",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["os_system_protocol_2", "eval_protocol_4", "inst", "stack_global"])
def test_the_same_pickles_do_run_when_python_loads_them(name: str, tmp_path: Path) -> None:
    # Without this the tests above could pass on pickles that are harmless by mistake.
    (tmp_path / "p").write_bytes(hostile.EXECUTING[name](tmp_path))
    program = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "p")], timeout=60, capture_output=True, check=False)

    assert (tmp_path / hostile.MARK).exists()


@pytest.mark.parametrize("name", hostile.TAKING)
def test_a_pickle_that_takes_is_refused_in_time_and_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    hostile.write_pickle(path, hostile.TAKING[name])

    outcome, seconds, used = _measured(path)

    # A memo index is only a key of a dict here, so that one is harmless and may be read.
    assert outcome in ("pickle", "limit", "hostile") or name == "huge_memo_index"
    assert seconds < _SECONDS, f"{seconds:.2f} s"
    assert used < _BYTES, f"{used >> 20} MB"


def test_hostile_archives_are_refused_with_a_reason(tmp_path: Path) -> None:
    kinds = {}
    for name, path in hostile.write_archives(tmp_path).items():
        with pytest.raises(Damaged) as caught:
            Archive(path)
        kinds[name] = caught.value.kind
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)
    assert kinds == {
        "deflated_bomb": "hostile", "compressed_record": "hostile", "traversal": "hostile", "absolute": "hostile",
        "backslash": "hostile", "two_roots": "hostile", "control_character": "hostile", "duplicate": "hostile",
        "beyond_the_end": "index", "overlap": "hostile", "many_records": "hostile", "prefix": "not torch",
        "suffix": "over-long", "cut": "cut", "cut_to_the_header": "cut", "empty": "empty", "zeros": "not torch",
        "text": "not torch", "only_an_end": "not torch", "no_pickle": "not torch",
    }  # fmt: skip


def test_a_zip_bomb_costs_nothing(tmp_path: Path) -> None:
    outcome, seconds, used = _measured(hostile.write_archives(tmp_path)["deflated_bomb"])

    assert outcome == "hostile"
    assert seconds < 0.2
    assert used < 20 << 20


def test_tensors_that_lie_are_refused(tmp_path: Path) -> None:
    for name, path in hostile.write_tensors(tmp_path).items():
        with pytest.raises(Damaged) as caught:
            read_tree(path)
        assert caught.value.kind in ("tensor", "pickle"), name


def test_shared_values_do_not_explode_for_who_walks_the_tree(tmp_path: Path) -> None:
    laughs = b"\x80\x02]q\x00" + b"".join(b"](" + b"h\x00" * 10 + b"eq\x00" for _ in range(50)) + b"."
    path = tmp_path / "laughs.pt"
    hostile.write_pickle(path, laughs)

    assert len(list(walk(read_tree(path).root))) < 1000


@pytest.mark.parametrize("what", ["folder", "pipe", "absent", "nul"])
def test_what_is_no_file_is_named_and_nothing_waits(what: str, tmp_path: Path) -> None:
    import os

    path = tmp_path / "x.pt"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "nul":
        path = tmp_path / "a\0b"
    with pytest.raises(Damaged) as caught:
        read_tree(path)
    assert caught.value.kind == "unreadable"


def _measured(path: Path) -> tuple[str, float, int]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], cwd=ROOT, timeout=120, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcome, seconds, used = json.loads(done.stdout)
    return outcome, seconds, used
