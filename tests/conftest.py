"""Fixtures for all rooms. The pools live for the whole session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Test modules and rank processes use the same import paths, `tests.<room>.<module>`, from the root of the checkout.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.fault_table import OPTION, TABLE, Results, rows_of
from tests.support.pool import Pools


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--benchmarks``: what `make bench` passes; ``--whole`` and others: what `make faults` passes."""
    parser.addoption("--benchmarks", action="store_true", help="run tests/benchmarks, which measure and print")
    parser.addoption("--ranges", action="store_true", help="run what `make ranges` runs: releases at the ends of ranges")
    parser.addoption(OPTION, nargs="?", const="whole", choices=("whole", "part"),
                     help="write docs/faults.md from this run; part: keep the results of the other tests")  # fmt: skip
    parser.addoption("--whole", action="store_true", help="run what `make faults` runs beyond `make test`")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Benchmarks take minutes and assert no times, so only those who ask for them get them."""
    return True if collection_path.name == "benchmarks" and not config.getoption("--benchmarks") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``whole`` are the long rest of the fault scenarios; a core of each stays in `make test`."""
    off = [name for name in ("whole", "ranges") if not config.getoption(f"--{name}")]
    rest = [item for item in items if any(item.get_closest_marker(name) for name in off)]
    if rest:
        config.hook.pytest_deselected(items=rest)
        items[:] = [item for item in items if not any(item.get_closest_marker(name) for name in off)]


def pytest_configure(config: pytest.Config) -> None:
    """Have the table of faults written, where that was asked for."""
    if config.getoption(OPTION):
        kept = rows_of(TABLE) if config.getoption(OPTION) == "part" else {}
        config.pluginmanager.register(Results(kept=kept), "table of faults")


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """Rank processes by tree, world size and environment: ``pools.get("newest", 2, dspatch="import").run(...)``."""
    shared = Pools()
    yield shared
    shared.close()
