"""Fingerprints: what counts as a change of a function and what does not, on every Python."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from textwrap import dedent, indent

import pytest
import wrapt
from hypothesis import given
from hypothesis import strategies as st

from dspatch.patching.body import binds_name, body_in_source, fingerprint, fingerprint_source
from tests.support.paths import ROOT

BASE = """
def load(self, tag, strict=True):
    if tag is None:
        raise ValueError(f"no tag in {self.folder!r} " "here")
    return [name for name in self.names if name != "x"], {1: 2.5}
"""

#: The value is part of the test: it has to be the same on every Python, and compat_matrix.yaml is full of such values.
BASE_VALUE = "38f645b69bad079b"

SAME = {
    "docstring": BASE.replace("\n    if", '\n    """What it does."""\n    if', 1),
    "comments": BASE.replace("is None:", "is None:  # nothing asked for"),
    "annotations": BASE.replace("self, tag, strict=True)", "self, tag: str | None, strict: bool = True) -> object"),
    "layout": BASE.replace("self, tag, strict", "self,\n         tag,\n         strict"),
    "quotes": BASE.replace('"x"', "'x'"),
    "pieces of text": BASE.replace('r} " "here"', 'r} here"'),
}

OTHER = {
    "default": BASE.replace("strict=True", "strict=False"),
    "parameter": BASE.replace("strict=True", "strict=True, *, only=0"),
    "name": BASE.replace("self.names", "self.others"),
    "number": BASE.replace("2.5", "2.50001"),
    "text": BASE.replace("no tag", "No tag"),
    "conversion": BASE.replace("!r", "!s"),
    "comparison": BASE.replace("!=", "=="),
    "statement": BASE.replace("    return", "    self.done = 1\n    return"),
    "decorator": "@staticmethod" + BASE,
    "negation": BASE.replace("is None", "is not None"),
}


def value(source: str, qualname: str = "load") -> str:
    found = body_in_source(source, qualname)
    assert found is not None
    return found.fingerprint


def test_the_value_is_fixed() -> None:
    assert value(BASE) == BASE_VALUE


@pytest.mark.parametrize("change", SAME)
def test_what_does_not_run_does_not_count(change: str) -> None:
    assert SAME[change] != BASE
    assert value(SAME[change]) == BASE_VALUE


@pytest.mark.parametrize("change", OTHER)
def test_what_runs_counts(change: str) -> None:
    assert value(OTHER[change]) != BASE_VALUE


def test_values_differ_between_all_changes() -> None:
    assert len({value(source) for source in OTHER.values()}) == len(OTHER)


@given(st.text(), st.text())
def test_two_texts_have_one_value_only_if_equal(one: str, two: str) -> None:
    def function_returning(text: str) -> str:
        return value(f"def load():\n    return {text!a}, 0\n")

    assert (function_returning(one) == function_returning(two)) == (one == two)


@pytest.mark.parametrize("name", ["python3.10", "python3.11", "python3.12", "python3.13"])
def test_same_value_on_every_python(name: str) -> None:
    python = shutil.which(name)
    code = (
        "import sys; from dspatch.patching.body import *; print(body_in_source(sys.stdin.read(), 'load').fingerprint)"
    )
    environment = {"PYTHONPATH": str(ROOT), "DSPATCH": "0"}
    usable = python and subprocess.run([python, "-c", ""], env=environment, check=False).returncode == 0
    if not usable:
        pytest.skip(f"there is no {name} here")
    done = subprocess.run(
        [str(python), "-c", code], input=BASE, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == BASE_VALUE


def test_live_functions_have_the_value_of_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "    def text(self):\n        return '''a\nb\n'''\n"
    source = f"class Engine:\n{indent(dedent(BASE), '    ')}\n{text}    @staticmethod\n    def static(tag):\n        return tag\n"
    file = tmp_path / "body_example.py"
    file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import body_example  # type: ignore[import-not-found]

    engine = body_example.Engine
    for name in ("load", "text", "static"):
        expected = fingerprint_source(file, f"Engine.{name}")
        assert expected is not None
        assert fingerprint(vars(engine)[name]) == expected
        assert fingerprint(getattr(engine(), name)) == expected
    wrapped = wrapt.FunctionWrapper(functools.wraps(engine.load)(lambda *args: None), lambda w, i, a, k: w(*a, **k))
    assert fingerprint(wrapped) == BASE_VALUE, "seen through someone else's wrappers"


def test_functions_without_source_have_no_value() -> None:
    scope: dict[str, object] = {}
    exec("def f(): pass", scope)
    assert fingerprint(scope["f"]) is None
    assert fingerprint(len) is None
    assert fingerprint(3) is None


def test_finding_a_function_in_a_file() -> None:
    lines = ["try:", "    import fast", "except ImportError:", "    def f(a): pass"]
    lines += ["if x:", "    def f(b, *, c): pass", "class C:", "    f = 1", ""]
    source = "\n".join(lines)
    found = body_in_source(source, "f")
    assert found is not None
    assert found.parameters == ("b", "c"), "the last definition counts"
    assert body_in_source(source, "C") is None
    assert body_in_source(source, "C.f") is None
    assert body_in_source(source, "f.g") is None
    assert binds_name(source, "fast")
    assert not binds_name(source, "slow")
