"""The defect of the report that started dspatch, recreated: no upstream release has it, forks and in-house builds may.

A copy of a real DeepSpeed tree is edited in the places that the report names: the resolver of ZeRO shard paths puts the
tag through ``str(int(tag))``, and ``_load_zero_checkpoint`` swallows the ``ValueError`` at debug level and returns
False. ``load_checkpoint`` then refreshes the masters from the 16-bit weights and reports success: weights are right, all
moments are fresh. Upstream's save goes through the same resolver and would raise, so the copy keeps its save working,
as a build in which this fault could live must.
"""

from __future__ import annotations

import ast
import hashlib
import shutil
import tempfile
from pathlib import Path

from tests.support.paths import CACHE
from tests.support.trees import Tree, edited, tree

_ENGINE = Path("deepspeed/runtime/engine.py")

_RESOLVER = "_get_rank_zero_ckpt_name"
_OWN = "_get_zero_ckpt_name"
_LOADER = "_load_zero_checkpoint"
_NAMES = "_get_mp_rank_zero_checkpoint_names"

_SWALLOW = (
    """
            zero_sd_list = self._get_all_zero_checkpoints(load_dir, tag)
            if zero_sd_list is None:
                return False
""",
    """
            try:
                zero_sd_list = self._get_all_zero_checkpoints(load_dir, tag)
            except ValueError as error:
                logger.debug(f"no ZeRO checkpoint: {error}")
                return False
            if zero_sd_list is None:
                return False
""",
)
_INT_TAG = ("            str(tag),\n", "            str(int(tag)),\n")
_SAVE_STILL_WORKS = (
    "return self._get_rank_zero_ckpt_name(checkpoints_path, tag, mp_rank, pp_rank, bf16_mode)",
    """file_prefix = self._get_zero_ckpt_prefix(pp_rank, bf16_mode=bf16_mode)
        return os.path.join(checkpoints_path, str(tag), f"{file_prefix}_mp_rank_{mp_rank:02d}_optim_states.pt")""",
)
_INT_TAG_ABOVE = ("        zero_ckpt_names = []\n", "        zero_ckpt_names = []\n        tag = str(int(tag))\n")

#: variant -> function -> (text, replacement). In ``resolver`` the function that names a shard is at fault, which dspatch
#: can resolve; in ``unresolvable`` the fault sits above it, where no path is the result.
VARIANTS: dict[str, dict[str, tuple[str, str]]] = {
    "resolver": {_RESOLVER: _INT_TAG, _OWN: _SAVE_STILL_WORKS, _LOADER: _SWALLOW},
    "unresolvable": {_NAMES: _INT_TAG_ABOVE, _LOADER: _SWALLOW},
}


def recreated(variant: str = "resolver", role: str = "oldest") -> Tree:
    """A tree with the described defect, made from the tree of ``role`` on first use.

    Args:
        variant: a key of ``VARIANTS``.
    """
    original = tree(role)
    recipe = hashlib.sha256(repr((VARIANTS[variant], original.version)).encode()).hexdigest()[:12]
    path = CACHE / "trees" / f"recreated-{variant}-{recipe}"
    if not path.is_dir():
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            copy = Path(scratch, "tree")
            shutil.copytree(original.path, copy, ignore=shutil.ignore_patterns("__pycache__"))
            source = (copy / _ENGINE).read_text(encoding="utf-8")
            (copy / _ENGINE).write_text(edit(source, VARIANTS[variant]), encoding="utf-8")
            _put_in_place(copy, path)
    return edited(original, path, f"recreated-{variant}")


def edit(source: str, edits: dict[str, tuple[str, str]]) -> str:
    """Change functions of the engine's source.

    Args:
        source: of ``deepspeed/runtime/engine.py``.
        edits: function name -> (text that must occur once in it, replacement).

    Raises:
        ValueError: a text does not occur exactly once in its function, or the result has another set of changed
            functions than asked for.
    """
    changed = source
    for function, (text, replacement) in edits.items():
        body = _segment(changed, function)
        if body.count(text) != 1:
            raise ValueError(f"{function} has the text to edit {body.count(text)} times, not once: {text!r}")
        changed = changed.replace(body, body.replace(text, replacement))
    before, after = _functions(source), _functions(changed)
    really = {name for name in before | after if before.get(name) != after.get(name)}
    if really != set(edits):
        raise ValueError(f"edited {sorted(really)}, not {sorted(edits)}")
    return changed


def _put_in_place(copy: Path, path: Path) -> None:
    try:
        copy.rename(path)
    except OSError:
        # Another process was faster; both copies are the same.
        if not path.is_dir():
            raise


def _nodes(source: str) -> dict[str, ast.FunctionDef]:
    engine = next(
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "DeepSpeedEngine"
    )
    return {node.name: node for node in engine.body if isinstance(node, ast.FunctionDef)}


def _functions(source: str) -> dict[str, str]:
    return {name: ast.dump(node) for name, node in _nodes(source).items()}


def _segment(source: str, function: str) -> str:
    node = _nodes(source)[function]
    return "".join(source.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno])
