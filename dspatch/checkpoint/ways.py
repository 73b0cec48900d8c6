"""Ways out when stage, number of ranks or precision changed between save and load.

What works was tried on the oldest and the newest release of the tests: a universal checkpoint changes the number of
data-parallel ranks, but not between stages 1 or 2 and stage 3, whose model files have other names; and
``load_optimizer_states=False`` takes the weights alone where these names are the same.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

#: What to pass for the weights alone.
WEIGHTS_ONLY = "load_optimizer_states=False, load_lr_scheduler_states=False"

_INJECT = "--inject_missing_state"


def same_names(saved: int, now: int) -> bool:
    """Whether both stages read and write model files of the same names: 0 to 2 do, and 3 has its own."""
    return (saved == 3) == (now == 3)


def converts(saved: int, now: int) -> bool:
    """Whether a tag of stage ``saved`` goes to stage ``now`` by way of a universal checkpoint.

    The converter (``deepspeed.checkpoint.ds_to_universal``) reads ZeRO shards only, and stage 0 loads no universal one.
    """
    return saved in (1, 2, 3) and now in (1, 2, 3) and same_names(saved, now)


def universal_command(source: str | os.PathLike[str], saved: int, has_info: bool = False) -> str:
    """The command that converts a tag folder.

    Args:
        source: the tag folder; the result lies beside it, with ``_universal`` behind its name.
        saved: stage at save.
        has_info: the model files hold ``universal_checkpoint_info`` (Megatron-DeepSpeed writes it). The converter wants
            it at stages 1 and 2, or an option that makes it up, where the installed release has one.
    """
    inject = saved <= 2 and not has_info and Converter.installed().injects is not False
    source = os.fspath(source)
    return (
        f"python -m deepspeed.checkpoint.ds_to_universal --input_folder {shlex.quote(source)} "
        f"--output_folder {shlex.quote(source + '_universal')}" + (f" {_INJECT}" if inject else "")
    )


def universal_load(tag: str) -> str:
    """What to set for loading the converted tag."""
    return f'"checkpoint": {{"load_universal": true}} in the configuration, and tag={tag + "_universal"!r}'


def fp32_command(folder: str | os.PathLike[str], tag: str) -> str:
    """The command that writes a tag's fp32 weights, with the script that DeepSpeed puts beside every ZeRO checkpoint."""
    folder = os.fspath(folder)
    return (
        f"python {shlex.quote(folder + '/zero_to_fp32.py')} {shlex.quote(folder)} {shlex.quote(folder + '_fp32')} "
        f"-t {shlex.quote(tag)}"
    )


@dataclass(frozen=True, slots=True)
class Converter:
    """What the installed ``ds_to_universal`` can do; None where it is not installed.

    Attributes:
        where: a version, else a path; empty when DeepSpeed is not installed.
        injects: it has ``--inject_missing_state``.
        stage3: it knows stage 3.
    """

    where: str
    injects: bool | None
    stage3: bool | None

    @classmethod
    def installed(cls) -> Converter:
        """Read its source; nothing is imported."""
        try:
            spec = find_spec("deepspeed")
        except (ImportError, ValueError):
            spec = None
        folders: Sequence[str] = list(spec.submodule_search_locations or ()) if spec is not None else []
        for folder in folders:
            try:
                source = Path(folder, "checkpoint", "ds_to_universal.py").read_text(encoding="utf-8")
            except OSError:
                continue
            return cls(_version(folder) or os.fspath(folder), _INJECT in source, "stage3" in source)
        return cls("", None, None)


def _version(folder: str) -> str:
    try:
        text = Path(folder, "git_version_info_installed.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^version\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return f"DeepSpeed {found.group(1)}" if found else ""
