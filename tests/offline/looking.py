"""Running ``dspatch inspect`` inside this process, and what it said."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch.cli.main import main
from dspatch.offline.findings import CATALOGUE


@dataclass
class Looked:
    """Exit code, JSON and stderr of one run."""

    code: int
    data: dict[str, Any]
    errors: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        """All findings, of the folder and of its tags."""
        return [*self.data["findings"], *(one for tag in self.data["tags"] for one in tag["findings"])]

    @property
    def ids(self) -> set[str]:
        """Ids of all findings that are more than a note."""
        return {one["id"] for one in self.findings if one["severity"] != "info"}

    @property
    def tag(self) -> dict[str, Any]:
        """The only tag."""
        (found,) = self.data["tags"]
        assert isinstance(found, dict)
        return found

    def finding(self, id: str) -> dict[str, Any]:
        """The first finding of an id."""
        return next(one for one in self.findings if one["id"] == id)


def look(folder: Path | str, *arguments: str) -> Looked:
    """Run ``dspatch inspect FOLDER ... --json``."""
    code, output, errors = run("--json", str(folder), *arguments)
    data = json.loads(output) if output.startswith("{") else {}
    if data:
        assert {one["id"] for one in data["findings"]} <= set(CATALOGUE)
        assert data["schema"] == 1
    return Looked(code, data, errors)


def run(*arguments: str) -> tuple[int, str, str]:
    """Run ``dspatch inspect ...``: exit code, stdout, stderr."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = main(["inspect", *arguments])
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
    return code, output.getvalue(), errors.getvalue()


def healthy(found: Looked) -> None:
    """Whole, nothing to say, exit code 0."""
    assert found.code == 0, found.findings or found.errors
    assert found.findings == []
    assert {one["verdict"] for one in found.data["tags"]} == {"whole"}
    assert found.data["verdict"] == "whole"
    assert found.data["exit"] == 0
    assert all(file["status"] == "ok" for tag in found.data["tags"] for file in tag["files"])


def broken(found: Looked, id: str, verdict: str = "damaged", code: int = 1) -> dict[str, Any]:
    """This finding, this verdict, this exit code; the finding."""
    assert id in found.ids, [(one["id"], one["text"]) for one in found.findings]
    assert found.code == code
    assert found.data["verdict"] == verdict, found.findings
    one = found.finding(id)
    assert one["text"] and one["severity"] == CATALOGUE[id].severity
    return one
