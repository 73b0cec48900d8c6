"""What the doctor prints: lines for people, the same as JSON for programs, and nothing that tells who ran it."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import site
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from dspatch.doctor.catalogue import known
from dspatch.doctor.checks import OK, PROBLEMS, SKIP, WARN, Answer
from dspatch.doctor.deepspeed import ledger, read_sites
from dspatch.doctor.here import Here

#: Version of the ``--json`` output; it changes only when a field changes its meaning or goes away.
JSON_SCHEMA = 1

PASTE = "dspatch doctor: paste everything from this line on into a bug report"

_LEGEND = (
    "prevented: every rank refuses before the load; caught: measured after it, every rank raises; told: one WARNING; found: "
    "by `dspatch inspect`; loud: DeepSpeed raises by itself; not run: dealt with, but no test can run it; "
    "not shown: no test shows it"
)

_COLOURS = {OK: "32", WARN: "33", SKIP: "2"}
_RED = "31"

_NAMES_OF_OURS = frozenset(("dspatch", "deepspeed", "torch", "python", "root", "user"))
_SITE = "\1"
#: A path from the root on; ``//`` that is left begins the rest of an address.
_PATH = re.compile(rf"(?<![\w.~>/{_SITE}-])/(?!/)[^\s:;,'\"()=<>|\]]+")


def as_data(here: Here, results: Iterable[tuple[str, Answer]], code: int, verbose: bool) -> dict[str, Any]:
    """The report as plain data, see the README for the fields."""
    data = {
        "schema": JSON_SCHEMA,
        "paste": PASTE,
        "exit": code,
        "versions": _versions(here),
        "checks": [
            {"id": id, "status": one.status, "line": one.line, "fix": one.fix,
             "evidence": list(one.evidence) if verbose else []}
            for id, one in results
        ],
        "sites": _sites(here),
        "faults": [
            {"id": fault.id, "title": fault.title, "does": fault.does, "note": fault.note,
             "deepspeed": [part.text for part in fault.deepspeed]}
            for fault in known(here)
        ],
    }  # fmt: skip
    return data if verbose else _each_text(data, scrubber(here))


def as_text(data: dict[str, Any], colour: bool) -> str:
    """The report for people, from ``as_data``."""
    versions = data["versions"]
    named = [f"{name} {versions[name] or 'unknown'}" for name in ("dspatch", "deepspeed", "torch", "wrapt", "python")]
    lines = [data["paste"], ", ".join([*named, versions["system"]]), ""]
    width = max(len(one["id"]) for one in data["checks"])
    for one in data["checks"]:
        lines.append(f"{_status(one['status'], colour)}  {one['id']:<{width}}  {one['line']}")
        if one["fix"]:
            lines.append(f"{'':7}{'':<{width}}  fix: {one['fix']}")
        lines += [f"{'':7}{'':<{width}}  | {text}" for text in one["evidence"]]
    lines += _table("sites", data["sites"], ("patch", "tier", "state", "deepspeed", "site", "reason"))
    faults = [{**one, "title": one["title"] + (f" ({one['note']})" if one["note"] else "")} for one in data["faults"]]
    lines += _table("faults of this DeepSpeed, and what dspatch does about each", faults, ("id", "does", "title"))
    lines += [f"  {_LEGEND}"] if faults else []
    return "\n".join(lines)


def exit_code(results: Iterable[tuple[str, Answer]]) -> int:
    """0 fine, 1 a problem was found, 3 the self-test that was asked for could not be run."""
    by_id = dict(results)
    if "selftest.load" in by_id and by_id["selftest.load"].status == SKIP:
        return 3
    return 1 if any(one.status in PROBLEMS for one in by_id.values()) else 0


def _status(word: str, colour: bool) -> str:
    padded = f"{word:<5}"
    return f"\033[{_COLOURS.get(word, _RED)}m{padded}\033[0m" if colour else padded


def _table(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> list[str]:
    if not rows:
        return []
    widths = {name: max(len(str(row[name])) for row in rows) for name in columns}
    cells = ("  ".join(f"{row[name]!s:<{widths[name]}}" for name in columns).rstrip() for row in rows)
    return ["", f"{title}:", *(f"  {line}" for line in cells)]


def _versions(here: Here) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("dspatch", "wrapt"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return {
        "dspatch": found["dspatch"],
        "deepspeed": here.version or ("source tree" if here.deepspeed else None),
        "torch": here.torch or here.imports.fact("torch", "version", "") or None,
        "wrapt": found["wrapt"],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _sites(here: Here) -> list[dict[str, str]]:
    """Per site the row and its tier: as it turned out in a process, else by the source."""
    live = {row["patch"]: row for row in ledger(here)}
    read = read_sites(here)
    sites = []
    for one in [] if isinstance(read, Answer) else read:
        row = live.get(one["patch"])
        seen = {"tier": one["tier"], "state": "read", "reason": one["reason"]}
        if row is not None:
            told = row["reason"].strip().partition("\n")[0] or one["reason"]
            seen = {"tier": row["tier"] or one["tier"], "state": row["state"], "reason": told}
        sites.append(
            {"patch": one["patch"], "site": one["site"], "deepspeed": one["deepspeed"], "does": one["does"], **seen}
        )
    return sites


# --- nothing that tells who ran it ------------------------------------------------------------------------------------


def scrubber(here: Here) -> Callable[[str], str]:
    """Shortens paths to what lies in site-packages or to their last part, and takes the user's name out."""
    sites = {
        *site.getsitepackages(),
        site.getusersitepackages(),
        *(str(one) for one in here.path if "site-packages" in str(one)),
    }
    known = {str(here.folder), sys.prefix, sys.base_prefix, *(str(one) for one in here.path)}
    # Literally and longest first, since these may have spaces in them.
    places = [(place, _SITE) for place in _spellings(sites)]
    places += [(place, "/home-folder") for place in _spellings({str(here.home)})]
    places += [(place, f"/{_one_word(place)}") for place in _spellings(known - sites - {str(here.home)})]
    places.sort(key=lambda pair: len(pair[0]), reverse=True)
    names = [name for name in _user_names(here) if len(name) > 2 and name not in _NAMES_OF_OURS]
    users = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, names))})(?!\w)") if names else None

    def scrub(text: str) -> str:
        text = re.sub(r"(?<!http:)(?<!https:)//+", "/", text)
        for place, short in places:
            text = text.replace(place, short)
        text = _PATH.sub(_shorten, text).replace(_SITE, "site-packages")
        return users.sub("<user>", text) if users else text

    return scrub


def _shorten(match: re.Match[str]) -> str:
    path = match[0]
    _, inside, rest = path.rpartition("site-packages/")
    if inside:
        return f"site-packages/{rest}"
    return f".../{path.rstrip('/').rpartition('/')[2]}"


def _one_word(path: str) -> str:
    return re.sub(r"\W+", "-", os.path.basename(path)) or "root"


def _spellings(places: Iterable[str]) -> set[str]:
    spelled = {spelling for place in places for spelling in (place, os.path.realpath(place))}
    return {place for place in spelled if len(place) > 1 and os.path.isabs(place)}


def _user_names(here: Here) -> set[str]:
    names = {here.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")} | {here.home.name}
    with contextlib.suppress(KeyError, OSError):  # a container whose user has no name
        names.add(getpass.getuser())
    return names - {""}


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _each_text(one, change) for name, one in value.items()}
    return [_each_text(one, change) for one in value] if isinstance(value, list) else value
