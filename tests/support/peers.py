"""DeepSpeed's own checkpoint tests, without dspatch and under it in strict mode: the same tests have to pass.

Run as ``python -m tests.support.peers SOURCE`` (``make peers SRC=SOURCE``), where SOURCE is a checkout of DeepSpeed at a
release; source distributions do not carry the tests. The release itself is built like every other tree. Nothing of the
checkout is changed or kept: its tests are copied into ``.cache/peers``, with what each of them became.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from tests.support import trees
from tests.support.environment import free_port, remove_shared_memory
from tests.support.paths import CACHE

#: What DeepSpeed's tests need beside it and torch; they do not work with newer ones.
PACKAGES = ("pytest>=7.2,<8.4", "pytest-forked")

#: Tests that ask for what dspatch is there to prevent, and why that is right.
EXPLAINED = {
    "TestLatestCheckpoint::test_missing_latest": "a load that finds nothing is an error (A1), unless "
    "DSPATCH_EXPECT=nothing=ok declares it",
}

#: Seconds for one scenario of theirs (``DS_UNITTEST_TIMEOUT``); the first ones compile operators.
_SCENARIO = "300"


def main() -> None:
    """Run both, print what differs, exit with 1 if anything does."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.peers", description=__doc__.split("\n", 1)[0])
    parser.add_argument("source", type=Path, help="a checkout of DeepSpeed at a release")
    parser.add_argument("--only", nargs="*", default=[], metavar="FILE", help="names of test files; all by default")
    wanted = parser.parse_args()
    version = (wanted.source / "version.txt").read_text(encoding="utf-8").strip()
    found = trees.release(version)
    home = CACHE / "peers" / version
    tests = _copied(wanted.source / "tests", home)
    chosen = [f"unit/checkpoint/{name}" for name in wanted.only] or ["unit/checkpoint"]
    results = {on: _run(found, home, tests, chosen, on) for on in (False, True)}
    sys.exit(_compared(version, results[False], results[True]))


def _copied(source: Path, home: Path) -> Path:
    tests = home / "tests"
    shutil.rmtree(tests, ignore_errors=True)
    shutil.copytree(source, tests)
    packages = CACHE / "peers" / "packages"
    if not packages.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), *PACKAGES]
        subprocess.run(command, check=True)
    return tests


def _run(found: trees.Tree, home: Path, tests: Path, chosen: list[str], on: bool) -> dict[str, str]:
    """Test -> passed, failed, error or skipped."""
    report, port = home / f"{'on' if on else 'off'}.xml", free_port()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DSPATCH")}
    environ |= {
        "PYTHONPATH": os.pathsep.join((str(CACHE / "peers" / "packages"), str(found.path), str(tests))),
        "TORCH_EXTENSIONS_DIR": str(found.extensions),
        "DS_ACCELERATOR": "cpu",
        "DS_UNITTEST_TIMEOUT": _SCENARIO,
        "LOCAL_SIZE": "4",
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": str(port),
    }
    pytest = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *chosen,
    ]  # fmt: skip
    under = [sys.executable, "-m", "dspatch", "run", "--"] if on else []
    if on:
        environ["DSPATCH_MODE"] = "strict"
    print(f"[peers] {'under dspatch' if on else 'plain'}: {' '.join(chosen)}", file=sys.stderr, flush=True)
    with (home / f"{'on' if on else 'off'}.log").open("w", encoding="utf-8") as log:
        subprocess.run([*under, *pytest], cwd=tests, env=environ, stdout=log, stderr=subprocess.STDOUT, check=False)
    remove_shared_memory(port)
    return _outcomes(report)


def _outcomes(report: Path) -> dict[str, str]:
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        said = {child.tag for child in case}
        word = next((word for word in ("failure", "error", "skipped") if word in said), "passed")
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = word
    return outcomes


def _compared(version: str, off: dict[str, str], on: dict[str, str]) -> int:
    for title, outcomes in (("plain", off), ("under dspatch", on)):
        counted = ", ".join(f"{count} {word}" for word, count in sorted(Counter(outcomes.values()).items()))
        print(f"DeepSpeed {version}, {title}: {counted}")
    odd = sorted(name for name in {*off, *on} if (off.get(name) == "passed") != (on.get(name) == "passed"))
    for name in odd:
        print(f"  {name}: {off.get(name, 'not run')} plain, {on.get(name, 'not run')} under dspatch{_why(name)}")
    left = [name for name in odd if not _why(name)]
    print(f"{len(left)} tests differ; see {CACHE.name}/peers/{version}/on.log" if left else "no other test differs")
    return int(bool(left))


def _why(name: str) -> str:
    return next((f": {why}" for test, why in EXPLAINED.items() if name.endswith(test)), "")


if __name__ == "__main__":
    main()
