"""Running ``dspatch diff`` inside this process, and what it said."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch.cli.main import main


@dataclass
class Compared:
    """Exit code, JSON and stderr of one run."""

    code: int
    data: dict[str, Any]
    errors: str

    @property
    def relation(self) -> str:
        """What B is to A."""
        return str(self.data["relation"])

    @property
    def outcomes(self) -> dict[str, str]:
        """Component -> outcome."""
        return {name: one["outcome"] for name, one in self.data["components"].items()}

    @property
    def unequal(self) -> dict[str, str]:
        """The same, without components that are equal."""
        return {name: outcome for name, outcome in self.outcomes.items() if outcome != "equal"}

    @property
    def parameters(self) -> list[tuple[str, str, str, str]]:
        """Component, state, name and outcome of every tensor that is not equal, sorted."""
        return sorted((one["component"], one["state"], one["name"], one["outcome"]) for one in self.data["parameters"])

    @property
    def names(self) -> set[str]:
        """Parameters that are not equal."""
        return {one["name"] for one in self.data["parameters"]}

    def parameter(self, component: str, name: str, state: str = "") -> dict[str, Any]:
        """One tensor that is not equal."""
        (found,) = [one for one in self.data["parameters"]
                    if (one["component"], one["name"], one["state"]) == (component, name, state)]  # fmt: skip
        assert isinstance(found, dict)
        return found


def diff(a: Path | str, b: Path | str, *arguments: str) -> Compared:
    """Run ``dspatch diff A B ... --json``."""
    code, output, errors = run(str(a), str(b), "--json", *arguments)
    data = json.loads(output, parse_constant=_refused) if output.startswith("{") else {}
    if data:
        assert data["schema"] == 1
        assert data["exit"] == code
    return Compared(code, data, errors)


def run(*arguments: str) -> tuple[int, str, str]:
    """Run ``dspatch diff ...``: exit code, stdout, stderr."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = main(["diff", *arguments])
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
    return code, output.getvalue(), errors.getvalue()


def same(a: Path, b: Path, *arguments: str) -> Compared:
    """Equal, nothing to doubt, exit code 0: the healthy twin."""
    found = diff(a, b, *arguments)
    assert (found.code, found.relation) == (0, "same"), found.data.get("answer", found.errors)
    assert (found.data["parameters"], found.data["values"], found.data["damage"], found.data["doubts"]) == (
        [],
        [],
        [],
        [],
    )
    assert set(found.outcomes.values()) == {"equal"}
    return found


def _refused(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")
