"""Whether DeepSpeed's launcher hands the ``DSPATCH*`` variables on to other nodes.

On one node children inherit them. For others the multi-node runner exports only variables whose names begin with a few
prefixes of its own, and what the file ``.deepspeed_env`` names (deepspeed/launcher/runner.py).
"""

from __future__ import annotations

from pathlib import Path

from dspatch.doctor.checks import Answer, Check, fail, ok, warn
from dspatch.doctor.here import Here

#: Variable that gives the file another name, and its usual name.
_NAME, _USUAL = "DS_ENV_FILE", ".deepspeed_env"


def _forwards(here: Here) -> Answer:
    name = here.environ.get(_NAME, _USUAL)
    # In this order: what the working folder's file says wins.
    files = [path for path in dict.fromkeys((here.home / name, here.folder / name)) if path.is_file()]
    listed = [str(path) for path in files]
    named: dict[str, str] = {}
    for path in files:
        try:
            named |= _read(path)
        except OSError as error:
            return fail(
                f"{path} cannot be read, at which the launcher stops: {error.strerror}", "make it readable", *listed
            )
        except ValueError as error:
            return fail(f"{path}, {error} is no NAME=VALUE, at which the launcher stops", "remove that line", *listed)
    # Only rank 0 writes the report, on the node that has the path.
    wanted = {variable: value.strip() for variable, value in here.settings.items() if variable != "DSPATCH_REPORT"}
    absent = [f"{variable}={value}" for variable, value in wanted.items() if variable not in named]
    if absent:
        told = ", ".join(one.partition("=")[0] for one in absent)
        fix = f"one line each into {name} in the home or working folder: {' '.join(absent)}"
        return warn(f"in a run on several nodes these do not reach other nodes: {told}", fix, *listed)
    other = [f"{one}={named[one]}, not {value}" for one, value in wanted.items() if named[one] != value]
    if other:
        line = f"in a run on several nodes {name} wins over this shell: {'; '.join(other)}"
        return warn(line, f"make them the same in {name}", *listed)
    given = [f"{variable}={value}" for variable, value in named.items() if variable.startswith("DSPATCH")]
    if given:
        return ok(f"in a run on several nodes {name} hands on {', '.join(given)}", *listed)
    return ok("no DSPATCH variable to hand on", *listed)


def _read(path: Path) -> dict[str, str]:
    """The file's variables, as the launcher reads them.

    Raises:
        OSError: the file cannot be read. ValueError: a line is not of the form; its number.
    """
    named = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        variable, equals, value = line.partition("=")
        if not equals:  # an empty line too
            raise ValueError(f"line {number}")
        named[variable] = value.strip()
    return named


CHECKS = (Check("launcher.forwards", _forwards),)
