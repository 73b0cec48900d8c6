"""What dspatch costs processes: `import dspatch` <= 5 ms CPU; a Python process with the startup file <= 0.3 ms more."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

_ROUNDS = 60


def test_import() -> None:
    program = "import time; t = time.process_time(); import dspatch; print(time.process_time() - t)"
    taken = [
        float(
            subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        )
        for _ in range(_ROUNDS)
    ]
    print(f"\nimport dspatch: {statistics.median(taken) * 1000:.2f} ms CPU, median of {_ROUNDS} (target 5)")


def test_startup_file(tmp_path: Path) -> None:
    """The line of the .pth file, run where Python runs it: in a sitecustomize, against an empty one."""
    line = (ROOT / "dspatch.pth").read_text(encoding="utf-8")
    empty, ours = tmp_path / "empty", tmp_path / "ours"
    for folder, text in ((empty, ""), (ours, line)):
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    (ours / "_dspatch_startup.py").write_bytes((ROOT / "_dspatch_startup.py").read_bytes())
    program = "import time; print(time.process_time())"
    taken: dict[Path, list[float]] = {empty: [], ours: []}
    for _ in range(_ROUNDS):
        for folder, times in taken.items():
            done = subprocess.run(
                [sys.executable, "-c", program],
                env={"PYTHONPATH": str(folder)},
                capture_output=True,
                text=True,
                check=True,
            )
            times.append(float(done.stdout))
    more = statistics.median(taken[ours]) - statistics.median(taken[empty])
    print(f"\nstartup file, DSPATCH unset: {more * 1000:+.3f} ms CPU, medians of {_ROUNDS} (target 0.3)")
