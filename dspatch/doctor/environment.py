"""dspatch itself: where it comes from, what it needs, its settings; and torch."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

from dspatch.doctor.checks import Answer, Check, fail, ok, skip, warn
from dspatch.doctor.here import Here

_INSTALL = "pip install --force-reinstall dspatch"

#: Those without which dspatch still works, slower.
_DISPENSABLE = ("zlib-ng",)

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def _installed(here: Here) -> Answer:
    import dspatch

    folder = Path(str(dspatch.__file__)).resolve().parents[1]
    try:
        found = metadata.distribution("dspatch")
    except metadata.PackageNotFoundError:
        return fail(f"dspatch is not installed, only its folder is on the path: {folder}", f"pip install {folder}")
    line = f"dspatch {found.version}, {_kind(found)}, from {folder}"
    copies = here.copies("dspatch")
    if len(copies) > 1:
        places = [f"{one.folder} ({one.named or 'no version'})" for one in copies]
        return warn(f"{line}; {len(copies)} copies on the path", "remove all but one", *places)
    return ok(line)


def _kind(found: metadata.Distribution) -> str:
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    return "an editable install" if origin.get("dir_info", {}).get("editable") else "installed"


def _wrapt(here: Here) -> Answer:
    answer = _requirement("wrapt")
    if answer is not None:
        return fail(answer, "pip install --upgrade wrapt")
    broken = here.imports.error("wrapt")
    if broken:
        return fail(f"wrapt cannot be imported: {broken}", "pip install --force-reinstall wrapt")
    return ok(f"wrapt {metadata.version('wrapt')}")


def _requirements(here: Here) -> Answer:
    names = [name for name in _required() if name != "wrapt"]
    wrong = {name: text for name in names if (text := _requirement(name)) is not None}
    if not wrong:
        return ok(", ".join(f"{name} {metadata.version(name)}" for name in names))
    line, fix = "; ".join(wrong.values()), f"pip install --upgrade {' '.join(wrong)}"
    if set(wrong) <= set(_DISPENSABLE):
        return warn(f"{line}: checksums are computed by slower code", fix)
    return fail(line, fix)


def _required() -> dict[str, str]:
    """Name -> requirement of what dspatch needs at run time, as its metadata has it."""
    try:
        listed = metadata.requires("dspatch") or []
    except metadata.PackageNotFoundError:
        listed = ["wrapt", "packaging", "PyYAML", "zlib-ng"]
    return {str(_NAME.match(one)[0]): one for one in listed if "extra ==" not in one}  # type: ignore[index]


def _requirement(name: str) -> str | None:
    """What is wrong with one requirement, None if nothing."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    try:
        from packaging.requirements import Requirement
    except ImportError:  # named by its own row
        return None
    wanted = Requirement(_required().get(name, name)).specifier
    return None if wanted.contains(version, prereleases=True) else f"{name} is {version}, dspatch needs {wanted}"


def _matrix(here: Here) -> Answer:
    if here.matrix is None:
        return fail(f"compat_matrix.yaml cannot be used: {here.matrix_error}", _INSTALL)
    return ok(f"{len(here.matrix.rows)} rows on {len(here.matrix.modules())} modules of DeepSpeed")


def _switch(here: Here) -> Answer:
    words = {
        "unset": "DSPATCH is not set: only `import dspatch` arms",
        "on": "DSPATCH is on",
        "wrong": "DSPATCH is set, see settings.values",
    }
    if here.switch == "off":
        return warn("DSPATCH is an off word: nothing is patched and no load is checked", "unset DSPATCH")
    return ok(words[here.switch])


def _values(here: Here) -> Answer:
    wrong = dict(here.wrong_settings)
    unknown = _unknown_patches(here)
    if unknown:
        wrong["DSPATCH_DISABLE"] = f"DSPATCH_DISABLE names no patch of the matrix: {', '.join(unknown)}"
    intent = here.imports.error("dspatch")
    if intent.startswith("SettingsError") and "DSPATCH_EXPECT" in here.settings:
        wrong["DSPATCH_EXPECT"] = f"DSPATCH_EXPECT: {intent}"
    if wrong:
        return fail("; ".join(wrong.values()), f"correct or unset {', '.join(wrong)}", *wrong.values())
    given = ", ".join(f"{name}={value}" for name, value in here.settings.items())
    return ok(given or "no DSPATCH variable is set")


def _unknown_patches(here: Here) -> list[str]:
    named = [word.strip() for word in here.environ.get("DSPATCH_DISABLE", "").split(",") if word.strip()]
    return [] if here.matrix is None else [name for name in named if name not in (*here.matrix.ids(), "*")]


def _torch(here: Here) -> Answer:
    broken = here.imports.error("torch")
    if not broken:
        return ok(f"torch {here.imports.fact('torch', 'version', '') or here.torch}")
    if not here.torch and "No module named 'torch'" in broken:
        return fail("torch is not installed", "install the torch that your DeepSpeed needs", *here.imports.output)
    named = f"torch {here.torch}" if here.torch else "torch (no metadata)"
    return fail(
        f"{named} cannot be imported: {broken}", "repair torch: `python -c 'import torch'`", *here.imports.output
    )


def _python(here: Here) -> Answer:
    if not here.imports.path:
        return skip(f"no fresh process of this Python could be looked at: {here.imports.ended}")
    if here.imports.ended:
        return warn(f"a fresh process did not come to its end: {here.imports.ended}", "see the rows below",
                    *here.imports.output)  # fmt: skip
    return ok("a fresh process starts and comes to its end")


CHECKS = (
    Check("dspatch.installed", _installed),
    Check("dspatch.wrapt", _wrapt),
    Check("dspatch.requirements", _requirements),
    Check("dspatch.matrix", _matrix),
    Check("settings.switch", _switch),
    Check("settings.values", _values),
    Check("python.starts", _python),
    Check("torch.imports", _torch),
)
