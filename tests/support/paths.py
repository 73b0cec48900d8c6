"""Where things lie in a checkout. Everything that is built goes below ``.cache``, nothing outside the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
MATRIX = ROOT / "compat_matrix.yaml"
