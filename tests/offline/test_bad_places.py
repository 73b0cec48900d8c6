"""Each offline command in bad places: one clear sentence, the right exit code, and nothing written anywhere."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dspatch.checkpoint import layout
from tests.checkpoint.conftest import Saved
from tests.support.paths import ROOT

#: Runs a command of dspatch and says which files it opened for writing, made, moved or removed.
_WATCHED = """
import os, sys
writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
seen = []
def watch(event, args):
    if event == "open" and args[0] != os.devnull and (args[2] or 0) & writes:
        seen.append(str(args[0]))
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"):
        seen.append(f"{event} {args[0]}")
sys.dont_write_bytecode = True
sys.addaudithook(watch)
from dspatch.cli.main import main
code = main(sys.argv[1:])
print("WROTE", seen, file=sys.stderr)
sys.exit(code)
"""


def _run(*arguments: str, program: tuple[str, ...] = ("-m", "dspatch"), **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120,
                          env={**os.environ, **more}, check=False)  # fmt: skip


#: Starts a program without the capabilities that let root read everything (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH).
_AS_ANYBODY = """
import ctypes, os, sys
for capability in (1, 2):
    assert os.geteuid() or ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-m", "dspatch", *sys.argv[1:]])
"""


@pytest.mark.parametrize("command", ["inspect", "diff"])
def test_a_folder_without_permission(command: str, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    path = str(tmp_path / "closed")
    done = _run(command, *([path] if command == "inspect" else [path, path]), program=("-c", _AS_ANYBODY))
    assert (done.returncode, done.stdout) == (3, "")
    assert "Permission denied" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_file_without_permission(saved: Saved, tmp_path: Path) -> None:
    shutil.copytree(saved("newest", "z2-bf16"), tmp_path / "run")
    closed = next((tmp_path / "run").glob("*/*_optim_states.pt"))
    assert _run("inspect", str(tmp_path / "run"), "--all", program=("-c", _AS_ANYBODY)).returncode == 0, "the twin"
    closed.chmod(0)
    done = _run("inspect", str(tmp_path / "run"), "--all", program=("-c", _AS_ANYBODY))
    assert done.returncode in (1, 3) and "Traceback" not in done.stderr
    assert closed.name in done.stdout and "Permission denied" in done.stdout, done.stdout


@pytest.mark.parametrize("command", ["inspect", "diff"])
def test_places_that_are_no_folders(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for place, code in (("gone", 3), ("file", 3), ("odd \n name", 3), ("empty", 1 if command == "inspect" else 3)):
        path = str(tmp_path / place)
        done = _run(command, *([path] if command == "inspect" else [path, path]))
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), (place, done.stderr)
        said = done.stderr if code == 3 else done.stdout
        assert said.strip() and (code != 3 or (said.count("\n") == 1 and done.stdout == "")), (place, said)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("matrix", "check", "no/where"), 3), (("matrix", "check", "setup.cfg"), 3), (("matrix", "check"), 2),
     (("matrix", "--json", "--markdown"), 2), (("doctor", "--nonsense"), 2), (("doctor", "DIR"), 2)],
)  # fmt: skip
def test_wrong_use_of_the_other_commands(arguments: tuple[str, ...], code: int) -> None:
    done = _run(*arguments)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (code, "", False), done.stderr


def test_ten_thousand_files_in_diff(tmp_path: Path) -> None:
    tag = tmp_path / "step1"
    tag.mkdir()
    for rank in range(10_000):
        (tag / layout.shard_file(rank)).touch()
    done = _run("diff", str(tag), str(tag))
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert (done.stdout + done.stderr).count("\n") < 500


@pytest.mark.parametrize("command", [
    ("inspect", "DIR", "--all", "--deep"), ("inspect", "DIR", "--json"), ("inspect", "DIR", "--newest-whole"),
    ("inspect", "DIR", "--for-ranks", "4", "--for-stage", "2"), ("inspect", "DIR", "--deep", "--part", "1/2"),
    ("diff", "DIR", "--tag-a", "global_step3", "--tag-b", "global_step5"), ("matrix",), ("matrix", "check", "TREE"), ("status",),
])  # fmt: skip
def test_nothing_is_written(command: tuple[str, ...], saved: Saved) -> None:
    from tests.support.trees import tree

    told = {"DIR": str(saved("newest", "z2-bf16")), "TREE": str(tree("newest").path)}
    done = _run(*(told.get(word, word) for word in command), program=("-c", _WATCHED), PYTHONDONTWRITEBYTECODE="1")
    assert done.stderr.endswith("WROTE []\n"), done.stderr


def test_doctor_writes_only_into_a_scratch_folder_of_its_own(tmp_path: Path) -> None:
    done = _run("doctor", program=("-c", _WATCHED), PYTHONDONTWRITEBYTECODE="1", TMPDIR=str(tmp_path))
    wrote = ast.literal_eval(done.stderr.partition("WROTE ")[2])
    # A folder is emptied through a descriptor, by bare names.
    assert all(str(tmp_path) in one or one in ("os.remove printed", "os.remove told") for one in wrote), wrote
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("inspect", "DIR", "--all", "--json"), ("diff", "DIR", "--tag-b", "global_step3", "--json"),
                                     ("matrix", "--json"), ("doctor", "--json")])  # fmt: skip
def test_a_reader_that_goes_away(command: tuple[str, ...], saved: Saved) -> None:
    words = [str(saved("newest", "z2-bf16")) if word == "DIR" else word for word in command]
    with subprocess.Popen([sys.executable, "-m", "dspatch", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 141)


def test_ctrl_c_stops_a_deep_check_and_says_what_it_covered(saved: Saved) -> None:
    # Real SIGINT in a process whose storage is slow.
    slow = ("import sys, time\nfrom dspatch.offline import deep\nreal = deep.crc_of_run\n"
            "def crc_of_run(*args):\n    print('reading', file=sys.stderr, flush=True)\n    time.sleep(0.3)\n"
            "    return real(*args)\ndeep.crc_of_run = crc_of_run\n"
            "from dspatch.cli.main import main\nsys.exit(main(sys.argv[1:]))\n")  # fmt: skip
    command = [sys.executable, "-c", slow, "inspect", str(saved("newest", "z2-bf16")), "--deep", "--threads", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "(stopped)" in output and "0 of 3 files entirely" in output and "[deep.not-covered]" in output


def test_on_a_read_only_file_system(saved: Saved) -> None:
    folder = saved("newest", "z2-bf16")
    # A mount namespace of its own, in which every folder that could be written to cannot.
    script = ("mount --make-rprivate / && for d in /tmp /var/tmp /dev/shm \"$HOME\" \"$PWD\"; do "
              "mount --bind \"$d\" \"$d\" && mount -o remount,ro,bind \"$d\"; done && ! touch \"$0/x\" 2>/dev/null || exit 77; "
              "exec \"$@\"")  # fmt: skip

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["unshare", "-m", "sh", "-c", script, str(folder), sys.executable, "-m", "dspatch", *arguments],
                              cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)  # fmt: skip

    if shutil.which("unshare") is None or run("matrix").returncode != 0:
        pytest.skip("no mount namespaces here")
    assert run("inspect", str(folder), "--all", "--deep").returncode == 0
    assert run("diff", str(folder), "--tag-a", "global_step3", "--tag-b", "global_step3").returncode == 0
    done = run("inspect", str(folder), "--html", str(folder / "page.html"))
    assert (done.returncode, done.stdout) == (3, "") and "Read-only file system" in done.stderr
    done = run("doctor")
    assert "Traceback" not in done.stderr and "no process could be started" in done.stdout
