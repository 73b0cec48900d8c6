"""A range of DeepSpeed releases, ``>=A,<B`` or ``>=A,<=B``, as the matrix writes it.

Both ends are required: a range without an upper end would promise something about releases nobody has seen. Plain
intervals instead of general specifiers make it possible to say whether two ranges overlap or leave a gap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspatch.errors import MatrixError

if TYPE_CHECKING:
    from packaging.version import Version

_FORM = re.compile(r"\s*>=\s*(?P<first>[^\s,<>=!~]+)\s*,\s*(?P<bound><=?)\s*(?P<last>[^\s,<>=!~]+)\s*")


def parse_version(text: str) -> Version:
    """A version by PEP 440.

    Raises:
        MatrixError: it is none.
    """
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except (InvalidVersion, TypeError) as error:
        raise MatrixError(f"{text!r} is no version") from error


@dataclass(frozen=True)
class Range:
    """Releases from ``first`` on, up to ``last``, which belongs to it only when ``inclusive``.

    A local suffix (``0.1+abc``) counts as the release it was built from, and a pre-release of ``last`` comes before
    it, as PEP 440 orders them.
    """

    text: str
    first: Version
    last: Version
    inclusive: bool

    @classmethod
    def parse(cls, text: str) -> Range:
        """Read ``>=A,<B`` or ``>=A,<=B``.

        Raises:
            MatrixError: another form, or an empty range.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise MatrixError(f"{text!r} is no range: write '>=A,<B' or '>=A,<=B'")
        first, last = parse_version(match["first"]), parse_version(match["last"])
        inclusive = match["bound"] == "<="
        if first > last or (first == last and not inclusive):
            raise MatrixError(f"the range {text!r} holds no version")
        return cls(text, first, last, inclusive)

    def __contains__(self, version: Version) -> bool:
        return not self.is_after(version) and not self.is_before(version)

    def is_after(self, version: Version) -> bool:
        """Whether every release of the range is newer than ``version``."""
        return _release(version) < self.first

    def is_before(self, version: Version) -> bool:
        """Whether every release of the range is older than ``version``."""
        release = _release(version)
        return release > self.last if self.inclusive else release >= self.last

    def overlaps(self, later: Range) -> bool:
        """Whether a version can lie in both; ``later`` begins no earlier than this range."""
        return later.first < self.last or (self.inclusive and later.first == self.last)

    def meets(self, later: Range) -> bool:
        """Whether ``later`` begins exactly where this range ends, so that no version is in neither or in both."""
        return not self.inclusive and later.first == self.last


def _release(version: Version) -> Version:
    """The version without its local suffix."""
    return parse_version(version.public)
