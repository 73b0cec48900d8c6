"""DeepSpeed and what dspatch does to it: which one, whether the sites fit, who else is there, who came first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspatch.doctor.checks import Answer, Check, fail, ok, skip, warn
from dspatch.doctor.here import Here
from dspatch.patching import check, gate
from dspatch.patching.ledger import APPLIED, ARMED, FAILED

_NONE = "no DeepSpeed"

#: What a reading of the source says -> the tier that the gate will give.
_TIERS = {
    check.KNOWN: gate.TESTED,
    check.NEW: gate.COMPATIBLE,
    check.OUTSIDE: gate.COMPATIBLE,
    check.NEW_SIGNATURE: gate.INCOMPATIBLE,
    check.GONE: gate.INCOMPATIBLE,
    check.NOT_NEEDED: gate.NOT_NEEDED,
}


def _installed(here: Here) -> Answer:
    found = here.deepspeed
    if found is None:
        return fail("deepspeed is not installed here", "pip install deepspeed, or run this with the Python that has it")
    if here.version is not None:
        return ok(f"DeepSpeed {here.version} in {found.folder}")
    said = f" (it calls itself {found.named})" if found.named else ""
    return warn(
        f"DeepSpeed from a source tree in {found.folder}{said}: its version cannot be trusted, bodies alone decide",
        "nothing, if that is meant; see deepspeed.sites for what is known there",
    )


def _copies(here: Here) -> Answer:
    copies = here.copies("deepspeed")
    if len(copies) > 1:
        places = [f"{one.folder} ({one.named or 'no version'})" for one in copies]
        return warn(f"{len(copies)} DeepSpeeds on the path, {places[0]} is used", "remove the others", *places)
    return ok("one DeepSpeed on the path") if here.deepspeed is not None else skip(_NONE)


def _sites(here: Here) -> Answer:
    sites = read_sites(here)
    if isinstance(sites, Answer):
        return sites
    count = {tier: sum(site["tier"] == tier for site in sites) for tier in _TIERS.values()}
    line = f"{len(sites)} sites: " + ", ".join(f"{number} {tier}" for tier, number in count.items() if number)
    evidence = [f"{site['patch']}: {site['reason']}; {site['do']}" for site in sites if site["do"]]
    if count[gate.INCOMPATIBLE]:
        first = next(site for site in sites if site["tier"] == gate.INCOMPATIBLE)
        fix = f"the first load will raise: {first['patch']} ({first['reason']}); install a release of the matrix"
        return fail(line, fix, *evidence)
    if count[gate.COMPATIBLE]:
        return warn(line, "only what observes is applied there; `dspatch matrix check` says what is new", *evidence)
    return ok(line)


def read_sites(here: Here) -> list[dict[str, str]] | Answer:
    """For each site its row, tier and reason, by DeepSpeed's source; or why it cannot be read."""
    found, matrix = here.deepspeed, here.matrix
    if found is None:
        return skip(_NONE)
    if matrix is None:
        return skip("no matrix, see dspatch.matrix")
    try:
        _, checked = check.examine(matrix, found.folder)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return fail(f"DeepSpeed's source cannot be read: {error}", "install it again")
    return [
        {
            "patch": one.row.id, "site": one.row.site, "deepspeed": one.row.deepspeed.text, "does": one.row.does,
            "tier": _TIERS[one.state], "reason": one.state, "do": one.do,
        }
        for one in checked
    ]  # fmt: skip


def _imports(here: Here) -> Answer:
    if here.deepspeed is None:
        return skip(_NONE)
    broken = here.imports.error("deepspeed")
    if not broken:
        return ok("deepspeed can be imported, with dspatch on")
    if here.imports.error("torch"):
        return fail(f"deepspeed cannot be imported: {broken}", "see torch.imports", *here.imports.output)
    return fail(f"deepspeed cannot be imported: {broken}", "`python -c 'import deepspeed'`, with DSPATCH=0 if that fails "
                "in dspatch", *here.imports.output)  # fmt: skip


def _fit(here: Here) -> Answer:
    rows = ledger(here)
    if not rows:
        return skip("deepspeed could not be imported with dspatch on")
    failed = [row for row in rows if row["state"] == FAILED or row["tier"] == gate.INCOMPATIBLE]
    evidence = [f"{row['patch']}: {row['state']}, {row['tier']} ({_first_line(row['reason'])})" for row in rows]
    if failed:
        told = ", ".join(f"{row['patch']} ({_first_line(row['reason'])})" for row in failed)
        return fail(f"{len(failed)} of {len(rows)} patches do not fit: {told}", "the first load will raise; install a "
                    "DeepSpeed of the matrix, or DSPATCH_DISABLE the patch", *evidence)  # fmt: skip
    # What waits for a module that this release has not, or loads later, is not off.
    off = [row for row in rows if row["state"] not in (APPLIED, ARMED) and row["tier"] != gate.NOT_NEEDED]
    unread = [row for row in rows if row["state"] == APPLIED and row["tier"] == gate.COMPATIBLE]
    if off or unread:
        told = ", ".join(f"{row['patch']} ({_first_line(row['reason'])})" for row in (*off, *unread))
        return warn(f"{len(off)} of {len(rows)} patches are off, {len(unread)} on functions that dspatch has not read: {told}",
                    "`dspatch matrix check` says what is new; DSPATCH_DISABLE and DSPATCH_UNKNOWN decide", *evidence)  # fmt: skip
    return ok(f"{len(rows)} patches resolve and bind", *evidence)


def ledger(here: Here) -> list[dict[str, str]]:
    """The ledger of a fresh process that imported deepspeed with dspatch on; empty if it could not."""
    rows: list[dict[str, str]] = here.imports.fact("ledger", "rows", [])
    return [] if here.imports.error("deepspeed") else rows


def _others(here: Here) -> Answer:
    if here.imports.error("others") or not ledger(here):
        return skip("deepspeed could not be imported with dspatch on")
    found: dict[str, Sequence[Any]] = here.imports.fact("others", "others", {})
    if not found:
        return ok("nobody else wraps what dspatch wraps")
    who = ", ".join(dict.fromkeys(str(name) for names in found.values() for name in names))
    return warn(f"{len(found)} of the functions are wrapped or replaced by others too: {who}",
                "nothing, if you know them; they see a load before or after dspatch does",
                *(f"{site}: {', '.join(map(str, names))}" for site, names in found.items()))  # fmt: skip


def _order(here: Here) -> Answer:
    early: list[str] = here.imports.fact("start", "early", [])
    if not here.imports.path:
        return skip("no fresh process of this Python could be looked at")
    if "deepspeed" not in early:
        return ok("nothing imports deepspeed when Python starts; `import dspatch` may come before or after it")
    before = "dspatch" in early and early.index("dspatch") < early.index("deepspeed")
    if before:
        return ok("deepspeed is imported when Python starts, after dspatch")
    return warn(
        "deepspeed is imported when Python starts, before dspatch: names that were copied until then stay unpatched",
        "find what imports it (a .pth file, sitecustomize or usercustomize), or `dspatch activate`",
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


CHECKS = (
    Check("deepspeed.installed", _installed),
    Check("deepspeed.copies", _copies),
    Check("deepspeed.sites", _sites),
    Check("deepspeed.imports", _imports),
    Check("patches.fit", _fit),
    Check("patches.others", _others),
    Check("patches.order", _order),
)
