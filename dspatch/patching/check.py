"""The matrix against one DeepSpeed tree that is read, not imported: what is known there, what is new, what to do.

This is how support for a release is added, so the answer names the edit to make in compat_matrix.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dspatch.patching.body import Body, binds_name, body_in_source
from dspatch.patching.gate import choose, why_not_needed
from dspatch.patching.matrix import Matrix, Row
from dspatch.patching.ranges import parse_version
from dspatch.patching.version import version_beside

KNOWN = "known body"
NEW = "new body, same signature"
NEW_SIGNATURE = "new signature"
GONE = "site gone"
NOT_NEEDED = "not needed"
#: The body is known, but the release is outside the range of every row.
OUTSIDE = "known body, outside the range"

#: What asks for no edit.
FINE = (KNOWN, NOT_NEEDED)


@dataclass(frozen=True)
class Checked:
    """One row against the tree.

    Attributes:
        row: the row of its site that is for this release.
        state: one of the words above.
        body: fingerprint that was found, empty if the judged function is not there.
        do: what to do about it, empty if nothing.
    """

    row: Row
    state: str
    body: str
    do: str


def tree_version(tree: Path) -> str | None:
    """Version of an unpacked tree by the metadata beside it; None for a source tree."""
    return version_beside([tree])


def locate(where: str, installed: Sequence[Path] = (), trees: Path | None = None) -> Path | None:
    """The folder that holds the ``deepspeed`` package: a path to it, to the package itself, or a version.

    Args:
        where: a folder, or a version such as the matrix has.
        installed: folders to look in for an installed DeepSpeed of that version (``sys.path``).
        trees: a folder of unpacked trees named by version.
    """
    path = Path(where)
    unpacked = [trees / where] if trees is not None else []
    for folder in (path, path.parent, *unpacked):
        if folder.is_dir() and (folder / "deepspeed" / "runtime").is_dir() and (folder != path.parent or path.is_dir()):
            return folder
    for folder in installed:
        if (folder / "deepspeed" / "runtime").is_dir() and version_beside([folder]) == where:
            return folder
    return None


def examine(matrix: Matrix, tree: Path) -> tuple[str | None, tuple[Checked, ...]]:
    """Judge every site of the matrix by the source in ``tree``.

    Returns:
        The tree's version (None: a source tree) and one ``Checked`` per site, in matrix order.

    Raises:
        OSError: a file cannot be read.
        SyntaxError: a file is not Python that this interpreter can read.
    """
    version = tree_version(tree)
    return version, tuple(_check(chain, tree, version) for chain in matrix.chains())


def _check(chain: Sequence[Row], tree: Path, version: str | None) -> Checked:
    judged = _body(tree, chain[-1].judged_site)
    row = choose(chain, version, judged.fingerprint if judged is not None else None)
    judged = _body(tree, row.judged_site)
    if why_not_needed(row, version):
        return Checked(row, NOT_NEEDED, judged.fingerprint if judged else "", "")
    if judged is None or not _is_there(tree, row.site):
        do = f"find where {row.judged_site} went; close the range of {row.id} before this release"
        return Checked(row, GONE, "", do)
    # A name that is only imported is defined elsewhere; its parameters are checked when it is loaded.
    needed = set(row.needs) if not row.body_of else set()
    absent = sorted(needed - set(judged.parameters))
    if absent:
        do = f"{row.id} reads {', '.join(absent)}: write a patch file for the new signature, and a row that begins here"
        return Checked(row, NEW_SIGNATURE, judged.fingerprint, do)
    if judged.fingerprint not in row.bodies:
        do = f'read {row.judged_site}; if {row.id} is right there too, add "{judged.fingerprint}" to its bodies'
        return Checked(row, NEW, judged.fingerprint, do)
    if version is not None and parse_version(version) not in row.deepspeed:
        do = f"run its scenarios ({', '.join(row.scenarios)}), then widen the range of {row.id} to {version}"
        return Checked(row, OUTSIDE, judged.fingerprint, do)
    return Checked(row, KNOWN, judged.fingerprint, "")


def _body(tree: Path, site: str) -> Body | None:
    module, _, qualname = site.partition(":")
    source = _source(tree, module)
    return body_in_source(source, qualname) if source is not None else None


def _is_there(tree: Path, site: str) -> bool:
    module, _, qualname = site.partition(":")
    source = _source(tree, module)
    if source is None:
        return False
    return body_in_source(source, qualname) is not None or ("." not in qualname and binds_name(source, qualname))


def _source(tree: Path, module: str) -> str | None:
    stem = tree.joinpath(*module.split("."))
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None
