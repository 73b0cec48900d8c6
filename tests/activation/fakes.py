"""A package named deepspeed that imports in no time and has every function that the matrix patches."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from dspatch.patching import matrix
from tests.support.paths import MATRIX

#: Lies beside the package, for code in child processes.
LOOK = """
    import sys

    COSTLY = ("wrapt", "yaml", "packaging", "torch")

    def guards():
        '''How many wrappers of dspatch are on the loader.'''
        from deepspeed.runtime.engine import DeepSpeedEngine
        count, link = 0, vars(DeepSpeedEngine)["load_checkpoint"]
        while hasattr(link, "__wrapped__"):
            count += hasattr(link, "_self_patch_id")
            link = link.__wrapped__
        return count

    def loaded():
        '''Which modules are in the process that dspatch must not load too early.'''
        return [name for name in COSTLY if name in sys.modules]
    """


def make_deepspeed(folder: Path, first: str = "", without: str = "") -> Path:
    """Write the package.

    Args:
        folder: where to; it becomes an entry of the path.
        first: code that its ``__init__`` begins with.
        without: a function that is left out, as if a release had dropped it.
    """
    modules: dict[str, dict[str, dict[str, list[str]]]] = {"deepspeed": {}}
    for row in matrix.load(MATRIX).rows:
        for site in (row.site, row.judged_site):
            name, _, qualname = site.partition(":")
            owner, _, function = qualname.rpartition(".")
            parameters = modules.setdefault(name, {}).setdefault(owner, {}).setdefault(function, [])
            parameters += [needed for needed in row.needs if needed not in parameters]
    for name, owners in modules.items():
        package = folder.joinpath(*name.split(".")[:-1])
        file = folder / "deepspeed" / "__init__.py" if name == "deepspeed" else package / f"{name.split('.')[-1]}.py"
        package.mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(_owner(owner, functions, without) for owner, functions in owners.items()))
    for package in [folder / "deepspeed", *(entry for entry in folder.rglob("deepspeed/**/") if entry.is_dir())]:
        (package / "__init__.py").touch()
    imports = "".join(f"import {name}\n" for name in modules)
    (folder / "deepspeed" / "__init__.py").write_text(f"{first}\n{imports}")
    (folder / "look.py").write_text(dedent(LOOK))
    return folder


def _owner(owner: str, functions: dict[str, list[str]], without: str) -> str:
    indent, own = ("    ", ["self"]) if owner else ("", [])
    lines = [f"class {owner}:\n    pass\n"] if owner else []
    for name, parameters in functions.items():
        if name != without:
            given = ", ".join([*own, *(f"{parameter}=None" for parameter in parameters)])
            lines.append(f"{indent}def {name}({given}):\n{indent}    return {name!r}\n")
    return "\n".join(lines) + "\n"
