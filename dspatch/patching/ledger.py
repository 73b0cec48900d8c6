"""The ledger: one row per patch and site, saying what became of it. A patch that is not on says why."""

from __future__ import annotations

from dataclasses import dataclass

#: dspatch waits for the module to be imported.
ARMED = "armed"
#: The wrapper is on the function, now.
APPLIED = "applied"
#: Left out on purpose; the reason says whose.
SKIPPED = "skipped"
#: Fits, but could not be put on; the reason holds the traceback.
FAILED = "failed"
#: dspatch is not active in this process: deepspeed was never imported, or dspatch was deactivated.
NOT_TRIGGERED = "not triggered"


@dataclass(frozen=True)
class LedgerRow:
    """What became of one patch.

    Attributes:
        patch: the patch id.
        site: ``module:Qual.name``.
        state: ``armed``, ``applied``, ``skipped``, ``failed`` or ``not triggered``.
        reason: why, and what else is worth knowing (other names that were patched too); a failure
            says what was raised in the first line, its traceback follows.
        tier: ``tested``, ``compatible``, ``incompatible``, ``not needed``; empty before the gate has judged.
        version: DeepSpeed's version, ``source tree`` if it cannot be known, empty before the import.
    """

    patch: str
    site: str
    state: str
    reason: str = ""
    tier: str = ""
    version: str = ""

    def __str__(self) -> str:
        first_line = self.reason.partition("\n")[0]
        return f"{self.patch}: {self.state}{f' ({first_line})' if first_line else ''} on {self.site}"
