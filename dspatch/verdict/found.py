"""What one rank finds before the load: plain data, passed between the files that look."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspatch.checkpoint import tags
from dspatch.checkpoint.unpickle import Tree
from dspatch.errors import shorten
from dspatch.verdict.request import Request

NOTHING, REFUSED = "nothing", "refused"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why this rank cannot load.

    Attributes:
        kind: ``nothing`` (there is nothing to load) or ``refused``.
        text: for people.
        spoils: components that the load would spoil; who declares all of them as lost may load. Empty: nobody may.
    """

    kind: str
    text: str
    spoils: frozenset[str] = frozenset()


@dataclass(slots=True)
class Preflight:
    """What one rank knows before the load.

    Attributes:
        request: with the tag resolved.
        refusal: why not to load, None for nothing.
        files: ``"model"`` and ``"shard"`` -> tree of the file that this rank needs.
        not_checked: why the files were not looked at, empty when they were.
    """

    request: Request
    refusal: Refusal | None = None
    files: dict[str, Tree] = field(default_factory=dict)
    not_checked: str = ""


def tags_there(folder: str) -> str:
    """The tags of a checkpoint folder as a hint; empty when there are none."""
    listed = tags.list_tags(folder)
    return f"tags there, newest first: {shorten(one.name for one in listed)}" if listed else ""
