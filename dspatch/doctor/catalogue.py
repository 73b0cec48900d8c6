"""The faults that the installed release is known to have, and what dspatch does about each."""

from __future__ import annotations

from dspatch.doctor.checks import Answer, Check, ok, skip, warn
from dspatch.doctor.here import Here
from dspatch.patching.matrix import Fault

#: Nothing, or nothing that a test shows.
_OPEN = ("not shown", "not yet")


def _faults(here: Here) -> Answer:
    if here.deepspeed is None:
        return skip("no DeepSpeed")
    if here.matrix is None:
        return skip("no matrix, see dspatch.matrix")
    version = here.version
    if version is None:
        return skip("the version of this DeepSpeed cannot be trusted, so nobody knows which faults it has",
                    "the key `faults` of compat_matrix.yaml lists them by release")  # fmt: skip
    found = known(here)
    count: dict[str, int] = {}
    for fault in found:
        count[fault.does] = count.get(fault.does, 0) + 1
    line = f"{len(found)} known faults: {', '.join(f'{number} {does}' for does, number in count.items())}"
    if not here.matrix.was_read(version):
        return warn(f"{line} (release {version} was not read for the catalogue: these are the nearest one's)",
                    "a newer dspatch may know more")  # fmt: skip
    if any(fault.does in _OPEN for fault in found):
        return warn(
            line, "look below for those that are `not yet` or `not shown`, and keep away from what triggers them"
        )
    return ok(line)


def known(here: Here) -> tuple[Fault, ...]:
    """The faults of the DeepSpeed that is installed; none where its version cannot be known."""
    if here.matrix is None or here.version is None:
        return ()
    return here.matrix.faults_of(here.version)


CHECKS = (Check("catalogue.faults", _faults),)
