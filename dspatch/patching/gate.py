"""The gate: may this patch go onto the function that is really there?

Three tiers. *Tested*: the release is in the row's range and the body is known: apply. *Compatible*: the site is there
and has the parameters that the wrapper reads, but nobody has read this body: apply what only observes, or what is
right for every body. *Incompatible*: touch nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspatch.patching.body import fingerprint
from dspatch.patching.matrix import Row
from dspatch.patching.ranges import parse_version
from dspatch.patching.site import Target

TESTED = "tested"
COMPATIBLE = "compatible"
INCOMPATIBLE = "incompatible"
#: The release is known not to have the fault: the row has nothing to do here.
NOT_NEEDED = "not needed"

APPLY = "apply"
SKIP = "skip"
#: Touch nothing, and let the first load raise in strict mode.
REFUSE = "refuse"


@dataclass(frozen=True)
class Verdict:
    """What the gate says about one row.

    Attributes:
        tier: ``tested``, ``compatible``, ``incompatible`` or ``not needed``.
        action: ``apply``, ``skip`` or ``refuse``.
        reason: why, in a few words; empty where the tier says all.
    """

    tier: str
    action: str
    reason: str = ""


def choose(chain: Sequence[Row], version: str | None, body: str | None) -> Row:
    """The row of a chain (oldest range first) that is for this release.

    Without a version the row that knows the body; else the newest. A release before all ranges gets the oldest row and
    one after all of them the newest; ``judge`` then says what that means.
    """
    if version is None:
        return next((row for row in reversed(chain) if body in row.bodies), chain[-1])
    parsed = parse_version(version)
    return next((row for row in chain if not row.deepspeed.is_before(parsed)), chain[-1])


def judge(
    row: Row, target: Target | None, version: str | None, unknown: str = "observe", body: str | None = None
) -> Verdict:
    """Judge one row against the function that is there.

    Args:
        row: the row for this release, see ``choose``.
        target: the site as found in the loaded module, None if it is not there.
        version: DeepSpeed's version, None where it cannot be known (bodies alone decide).
        unknown: ``DSPATCH_UNKNOWN``: ``observe``, ``apply``, ``skip`` or ``error``.
        body: fingerprint of the judged function; by default that of ``target``.
    """
    judged = body if body is not None or target is None else fingerprint(target.attribute)
    known = judged in row.bodies
    not_needed = why_not_needed(row, version)
    if not_needed:
        return Verdict(NOT_NEEDED, SKIP, not_needed)
    misfit = _misfit(row, target, version, known)
    if misfit:
        return Verdict(INCOMPATIBLE, SKIP if unknown == "skip" else REFUSE, misfit)
    in_range = version is None or parse_version(version) in row.deepspeed
    if in_range and known:
        return Verdict(TESTED, APPLY)
    reasons = ("" if known else "unknown body", "" if in_range else f"outside {row.deepspeed.text}")
    return _not_tested(row, ", ".join(filter(None, reasons)), unknown)


def _not_tested(row: Row, reason: str, unknown: str) -> Verdict:
    """The verdict in the middle tier, where ``DSPATCH_UNKNOWN`` and the row itself decide."""
    if unknown == "skip":
        return Verdict(COMPATIBLE, SKIP, f"{reason}; DSPATCH_UNKNOWN=skip")
    if unknown == "error":
        return Verdict(COMPATIBLE, REFUSE, f"{reason}; DSPATCH_UNKNOWN=error")
    if unknown == "apply" or row.applies_to_unknown:
        return Verdict(COMPATIBLE, APPLY, reason)
    return Verdict(COMPATIBLE, SKIP, f"{reason}; {row.id} {row.does}, which needs a known one")


def _misfit(row: Row, target: Target | None, version: str | None, known: bool) -> str:
    """Why the row cannot be applied at all; empty if it can."""
    if target is None:
        return f"{row.site} does not exist"
    if not target.is_function:
        return f"{row.site} is no function"
    absent = [name for name in row.needs if name not in target.parameters]
    if absent:
        return f"{row.site} has no parameter {', '.join(absent)}"
    if version is not None and not known and row.deepspeed.is_after(parse_version(version)):
        return f"DeepSpeed {version} is older than {row.deepspeed.text}"
    return ""


def why_not_needed(row: Row, version: str | None) -> str:
    """Why a release does not have the fault at all; empty if it has, or if the version cannot be known."""
    if version is None:
        return ""
    parsed = parse_version(version)
    if row.upstream.introduced and parsed < parse_version(row.upstream.introduced):
        return f"the fault came with DeepSpeed {row.upstream.introduced}"
    if row.upstream.fixed_in and parsed >= parse_version(row.upstream.fixed_in):
        return f"fixed upstream in DeepSpeed {row.upstream.fixed_in}"
    return ""
