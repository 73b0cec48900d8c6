"""Whether DeepSpeed's launcher hands the ``DSPATCH*`` variables on to other nodes.

On one node children inherit them. For others the multi-node runner exports only variables whose names begin with a few
prefixes of its own, and what the file ``.deepspeed_env`` names (deepspeed/launcher/runner.py).
"""

from __future__ import annotations

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
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            variable, equals, value = line.partition("=")
            if not equals:
                return fail(f"line {number} of {path} is no NAME=VALUE, at which the launcher stops with a ValueError",
                            "remove the line, also if it is empty", *listed)  # fmt: skip
            named[variable] = value.strip()
    wanted = {variable: value for variable, value in here.settings.items() if variable != "DSPATCH_REPORT"}
    absent = [variable for variable in wanted if variable not in named]
    other = [variable for variable, value in wanted.items() if variable in named and named[variable] != value.strip()]
    if absent:
        line = " ".join(f"{variable}={wanted[variable]}" for variable in absent)
        return warn(f"on several nodes these do not reach the other ones: {', '.join(absent)}",
                    f"one line each into {name} in the home or working folder: {line}", *listed)  # fmt: skip
    if other:
        return warn(f"{name} has another value than this shell for {', '.join(other)}: ranks would differ, and refuse to load",
                    f"make them the same in {name}", *listed)  # fmt: skip
    if wanted:
        return ok(f"{name} hands on {', '.join(wanted)}", *listed)
    left = [variable for variable in named if variable.startswith("DSPATCH")]
    if left:
        return warn(f"{name} sets {', '.join(left)} on other nodes, and here they are not set: ranks would differ",
                    f"set them here too, or take them out of {name}", *listed)  # fmt: skip
    return ok("no DSPATCH variable to hand on", *listed)


CHECKS = (Check("launcher.forwards", _forwards),)
