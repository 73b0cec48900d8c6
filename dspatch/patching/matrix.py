"""compat_matrix.yaml as data: which patch goes onto which DeepSpeed function in which releases.

The file is the only place where DeepSpeed versions stand. It is read strictly (see ``schema``): a matrix that breaks a
rule stops everything, because a row that is quietly ignored is a checkpoint that is quietly not guarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from dspatch.errors import MatrixError
from dspatch.patching.ranges import Range, parse_version

#: The matrix that belongs to this installation, beside the ``dspatch`` package's modules or in the source tree.
FILE_NAME = "compat_matrix.yaml"


@dataclass(frozen=True)
class Upstream:
    """Where upstream knows about the fault.

    Attributes:
        reference: issue, pull request or commit; empty if upstream has none.
        introduced: first release with the fault; older releases do not need the row. Empty: all had it.
        fixed_in: first release without the fault; from then on the row retires itself. Empty: not fixed.
    """

    reference: str = ""
    introduced: str = ""
    fixed_in: str = ""


@dataclass(frozen=True)
class Row:
    """One patch on one site over one range of releases.

    Attributes:
        id: the name that ``DSPATCH_DISABLE``, the ledger and messages use.
        site: ``module:Qual.name`` of the DeepSpeed function that is wrapped. Its module is the one that is hooked.
        module: the patch file, ``dspatch.patches.<file>``.
        wrapper: the function in it, ``(wrapped, instance, args, kwargs)``.
        deepspeed: releases the row is for.
        tested: releases it was really run with.
        bodies: fingerprints of the site's source that were read and found right for this wrapper.
        does: ``observes`` (looks, changes nothing), ``prevents`` (raises) or ``repairs``.
        unknown: ``apply`` or ``skip``: what happens at a body that nobody has read. By default only what observes is
            applied; a row may say ``apply`` when its wrapper is right for every body, because it acts before or after
            the call, or only once the call has raised.
        why: one sentence for the reader of the table.
        scenarios: names of the fault scenarios that fail when this row is disabled.
        needs: parameters of the site that the wrapper reads by name.
        body_of: the function whose body decides, where that is not the site itself: a name that is only imported into
            a module is as right as the function that calls it there.
        faults: ids of the fault catalogue; empty if the fault is in no upstream release.
        beside: ids of rows that stand on the same site on purpose; the later row in the file wraps the earlier one.
        upstream: see ``Upstream``.
    """

    id: str
    site: str
    module: str
    wrapper: str
    deepspeed: Range
    tested: tuple[str, ...]
    bodies: tuple[str, ...]
    does: str
    unknown: str
    why: str
    scenarios: tuple[str, ...]
    needs: tuple[str, ...] = ()
    body_of: str = ""
    faults: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    upstream: Upstream = field(default_factory=Upstream)

    @property
    def defining_module(self) -> str:
        """Name of the DeepSpeed module that the site lives in."""
        return self.site.partition(":")[0]

    @property
    def judged_site(self) -> str:
        """The site whose body is compared with ``bodies``."""
        return self.body_of or self.site

    @property
    def applies_to_unknown(self) -> bool:
        """Whether the wrapper may go onto a body that nobody has read."""
        return self.unknown == "apply"

    @property
    def chain(self) -> tuple[str, str]:
        """Rows with the same chain follow each other in time: their ranges neither overlap nor leave a gap."""
        return (self.site, self.wrapper if self.beside else "")


@dataclass(frozen=True)
class Fault:
    """One fault of upstream releases, as the catalogue has it.

    Attributes:
        id: a letter for the family and a number.
        title: one line: what is lost, and when.
        deepspeed: releases that have it, as far as releases were read.
        does: what dspatch does about it: ``prevented`` (refused on every rank before DeepSpeed touches the engine),
            ``repaired``, ``caught`` (measured after the load, every rank raises), ``told`` (one WARNING), ``found`` (by
            ``dspatch inspect`` in the files), ``loud`` (DeepSpeed raises by itself), ``not run`` (dealt with in code
            that cannot be run by the tests; the note says why), ``not shown`` (it may be caught, no test shows it),
            ``not yet``.
        shown: names of the tests that show it.
        ran: releases at the ends of the ranges, inside and just outside, that `make ranges` runs to see that they have
            the fault or not; ends that are not among them come from comparing the bodies of functions.
        note: what else is worth knowing, one line.
    """

    id: str
    title: str
    deepspeed: tuple[Range, ...]
    does: str
    shown: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Matrix:
    """All rows and the catalogue of faults, in file order, and the releases that play a part in the tests (``trees``)."""

    rows: tuple[Row, ...]
    trees: Mapping[str, str]
    faults: tuple[Fault, ...] = ()

    def chains(self) -> tuple[tuple[Row, ...], ...]:
        """Rows grouped by ``Row.chain``, each group ordered from the oldest range to the newest, in file order."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.chain, []).append(row)
        return tuple(tuple(sorted(group, key=lambda row: row.deepspeed.first)) for group in groups.values())

    def for_version(self, version: str | None) -> tuple[Row, ...]:
        """Rows whose range holds ``version``; all of them if it is None (a source tree: bodies decide)."""
        if version is None:
            return self.rows
        parsed = parse_version(version)
        return tuple(row for row in self.rows if parsed in row.deepspeed)

    def faults_of(self, version: str) -> tuple[Fault, ...]:
        """The faults of a release. One that is newer than all that were read has those of the newest that was."""
        parsed = parse_version(version)
        ends = [part for fault in self.faults for part in fault.deepspeed]
        if ends and all(part.is_before(parsed) for part in ends):
            parsed = max(part.last for part in ends)
        return tuple(fault for fault in self.faults if any(parsed in part for part in fault.deepspeed))

    def was_read(self, version: str) -> bool:
        """Whether the catalogue of faults covers a release: not older or newer than all that were read for it."""
        parsed = parse_version(version)
        ends = [part for fault in self.faults for part in fault.deepspeed]
        newer = all(part.is_before(parsed) for part in ends)
        return not newer and not all(part.is_after(parsed) for part in ends)

    def modules(self) -> tuple[str, ...]:
        """Names of the DeepSpeed modules that have sites, each once, in file order."""
        return tuple(dict.fromkeys(row.defining_module for row in self.rows))

    def ids(self) -> tuple[str, ...]:
        """The patch ids, in file order."""
        return tuple(row.id for row in self.rows)


def default_path() -> Path:
    """Where the matrix of this installation is.

    Wheels carry it inside ``dspatch``; in an editable install it stays at the root of the source tree. Both are two
    folders above the file of ``dspatch.patches``.

    Raises:
        MatrixError: dspatch is not installed (a plain checkout on the path has no ``dspatch.patches``).
    """
    try:
        patches = import_module("dspatch.patches")
    except ImportError as error:
        raise MatrixError(
            "dspatch.patches cannot be imported: dspatch is not installed, only its folder is on the path; "
            "run `pip install .` (or `pip install -e .`) in it"
        ) from error
    return Path(str(patches.__file__)).resolve().parent.parent / FILE_NAME


def load(path: str | Path | None = None) -> Matrix:
    """Read and validate the matrix.

    Args:
        path: another file than the installed one, for tests and for forks.

    Raises:
        MatrixError: the file cannot be read, is no YAML, or breaks a rule of the schema; the message names all of them.
    """
    from dspatch.patching import schema

    source = Path(path) if path is not None else default_path()
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise MatrixError(f"the compatibility matrix cannot be read: {error}") from error
    return schema.build(_parse(text, source), str(source))


def _parse(text: str, source: Path) -> Any:
    import yaml

    # The C loader is eight times faster, and not in every build of PyYAML. Both build plain data only.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise MatrixError(f"{source} is no YAML: {error}") from error
