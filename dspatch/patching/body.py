"""Fingerprint of a function's source: the *body* of a site, by which a known DeepSpeed function is told from a new one.

The value depends only on what the code does: comments, layout, docstrings and annotations do not count. It is the same
on every Python that dspatch supports, which ``ast.dump`` is not (its text changed between releases), so the tree is
written out here in a form of our own.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Hexadecimal digits of a fingerprint: 64 bits, far more than the few hundred bodies that will ever be compared.
DIGITS = 16

#: Fields that change between Python versions, or that do not change what the code does.
_IGNORED_FIELDS = frozenset({"annotation", "ctx", "kind", "returns", "type_comment", "type_params"})

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Body:
    """One function as found in a source file.

    Attributes:
        fingerprint: see ``fingerprint``.
        parameters: names of its parameters, in order, without ``*args`` and ``**kwargs``.
    """

    fingerprint: str
    parameters: tuple[str, ...]


def fingerprint(function: object) -> str | None:
    """Fingerprint of a live function, method, ``staticmethod`` or ``classmethod``, seen through any wrappers.

    Returns:
        16 hexadecimal digits, or None where the source cannot be read (compiled, generated or no Python code at all).
    """
    try:
        lines, _ = inspect.getsourcelines(innermost(function))
    except (OSError, TypeError):
        return None
    # Not dedented: that would change the text of strings that span lines. An indented block parses under an `if`.
    prefix = "if True:\n" if lines[0][:1].isspace() else ""
    try:
        tree = ast.parse(prefix + "".join(lines))
    except SyntaxError:  # a lambda in the middle of an expression
        return None
    found = next((node for node in ast.walk(tree) if isinstance(node, _FunctionNode)), None)
    return None if found is None else _digest(found)


def fingerprint_source(path: str | Path, qualname: str) -> str | None:
    """Fingerprint of ``qualname`` (``f`` or ``Class.f``) in a file that is read, not imported; None: not there."""
    found = body_in_source(Path(path).read_text(encoding="utf-8"), qualname)
    return None if found is None else found.fingerprint


def body_in_source(source: str, qualname: str) -> Body | None:
    """Find ``qualname`` in ``source``; of several definitions of one name the last counts, as when Python runs it.

    Raises:
        SyntaxError: ``source`` is not Python.
    """
    node: ast.AST | None = ast.parse(source)
    for name in qualname.split("."):
        node = _last_definition(node, name) if node is not None else None
    if not isinstance(node, _FunctionNode):
        return None
    arguments = node.args
    names = tuple(item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    return Body(_digest(node), names)


def binds_name(source: str, name: str) -> bool:
    """Whether the top level of ``source`` binds ``name`` at all: defines, assigns or imports it."""
    return any(name in _bound_names(node) for node in _statements(ast.parse(source)))


def innermost(function: object) -> Callable[..., Any]:
    """The plain function under descriptors, bound methods and wrappers that say what they wrap."""
    current: Any = function
    for _ in range(64):  # a bound against wrappers that wrap each other
        if isinstance(current, (staticmethod, classmethod, types.MethodType)):
            current = current.__func__
        elif getattr(current, "__wrapped__", None) is not None:
            current = current.__wrapped__
        else:
            break
    return current  # type: ignore[no-any-return]


def _last_definition(parent: ast.AST, name: str) -> ast.AST | None:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in _statements(parent) if isinstance(node, kinds) and node.name == name]
    return found[-1] if found else None


def _statements(parent: ast.AST) -> Iterator[ast.stmt]:
    """Statements that run when ``parent`` runs, also under if, try and with, but not inside functions and classes."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _statements(node)


def _bound_names(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def _digest(node: _FunctionNode) -> str:
    return hashlib.sha256(_write(node).encode("ascii")).hexdigest()[:DIGITS]


def _write(value: object) -> str:
    """Our own text of an AST value. ``ascii`` because ``repr`` follows the Unicode tables of the Python at hand."""
    if isinstance(value, ast.JoinedStr):
        return f"(JoinedStr values={_write(_merge_text(value.values))})"
    if isinstance(value, ast.AST):
        fields = (f"{name}={_write(_field(value, name))}" for name in value._fields if name not in _IGNORED_FIELDS)
        return f"({' '.join((type(value).__name__, *fields))})"
    if isinstance(value, list):
        return f"[{' '.join(_write(item) for item in value)}]"
    return ascii(value)


def _field(node: ast.AST, name: str) -> object:
    value = getattr(node, name, None)
    if name == "body" and isinstance(node, (*_FunctionNode.__args__, ast.ClassDef)):
        return value[1:] if value and _is_docstring(value[0]) else value
    return value


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _merge_text(values: list[ast.expr]) -> list[object]:
    """Join neighbouring text pieces of an f-string: where they are cut differs between Python versions."""
    merged: list[object] = []
    for value in values:
        piece = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else value
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        elif piece != "":
            merged.append(piece)
    return merged
