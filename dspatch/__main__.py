"""``python -m dspatch``."""

from __future__ import annotations

import sys

from dspatch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
