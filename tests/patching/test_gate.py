"""The gate: which tier, which action, for every kind of function and release."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from dspatch.patching.gate import Verdict, choose, judge
from dspatch.patching.matrix import Row, Upstream
from dspatch.patching.site import Target, find
from dspatch.patching.version import imported_version
from tests.patching.fakes import LOAD, make_row, make_tree

BODY = "0" * 16
OTHER = "f" * 16


class Engine:
    """Something with a loader, a property and a class in it."""

    def load_checkpoint(self, load_dir: str, tag: str | None = None) -> None:
        """A loader."""

    def any_arguments(self, *args: Any, **kwargs: Any) -> None:
        """A loader whose parameters have no names."""

    value = property(lambda self: 1)
    Inner = int
    number = 3


def target(name: str = "load_checkpoint") -> Target:
    return Target(LOAD, Engine, name, vars(Engine)[name], inherited=False)


def judged(row: Row, version: str | None = "2.0", body: str = BODY, unknown: str = "observe") -> tuple[str, str]:
    verdict = judge(row, target(), version, unknown, body)
    return verdict.tier, verdict.action


def test_tested() -> None:
    for does in ("observes", "prevents", "repairs"):
        assert judge(make_row(does=does, unknown="skip"), target(), "2.0", body=BODY) == Verdict("tested", "apply")
        assert judged(make_row(does=does, unknown="skip"), version="2.0+abc") == ("tested", "apply")


@pytest.mark.parametrize(
    ("version", "body"), [("2.0", OTHER), ("3.0", BODY), ("3.1", OTHER), ("3.0rc1", OTHER), (None, OTHER)]
)
@pytest.mark.parametrize(
    ("setting", "of_observer", "of_repair"),
    [
        ("observe", "apply", "skip"),
        ("apply", "apply", "apply"),
        ("skip", "skip", "skip"),
        ("error", "refuse", "refuse"),
    ],
)
def test_compatible(version: str | None, body: str, setting: str, of_observer: str, of_repair: str) -> None:
    assert judged(make_row(), version, body, setting) == ("compatible", of_observer)
    assert judged(make_row(does="repairs", unknown="skip"), version, body, setting) == ("compatible", of_repair)


def test_a_source_tree_is_judged_by_its_body() -> None:
    assert judged(make_row(does="repairs", unknown="skip"), version=None) == ("tested", "apply")


@pytest.mark.parametrize(
    ("row", "there", "version", "says"),
    [
        (make_row(), None, "2.0", "does not exist"),
        (make_row(), "value", "2.0", "is no function"),
        (make_row(), "Inner", "2.0", "is no function"),
        (make_row(), "number", "2.0", "is no function"),
        (make_row(needs=("load_dir", "folder")), "load_checkpoint", "2.0", "has no parameter folder"),
        (make_row(needs=("load_dir",)), "any_arguments", "2.0", "has no parameter load_dir"),
        (make_row(), "load_checkpoint", "0.9", "is older than"),
    ],
)
def test_incompatible(row: Row, there: str | None, version: str, says: str) -> None:
    found = target(there) if there else None
    for setting, action in (("observe", "refuse"), ("apply", "refuse"), ("error", "refuse"), ("skip", "skip")):
        verdict = judge(row, found, version, setting, OTHER)
        assert (verdict.tier, verdict.action) == ("incompatible", action)
        assert says in verdict.reason


def test_parameters_that_are_read_are_enough() -> None:
    assert judged(make_row(needs=("load_dir", "tag"))) == ("tested", "apply")


def test_a_release_without_the_fault_needs_nothing() -> None:
    row = make_row(upstream=Upstream("", "1.5", "2.5"))
    assert judged(row, "1.4") == judged(row, "2.5") == judged(row, "4.0", OTHER) == ("not needed", "skip")
    assert judged(row, "1.5") == judged(row, "2.4") == ("tested", "apply")
    assert judged(row, None) == ("tested", "apply"), "a source tree: the body decides"


def test_the_row_of_a_chain_is_chosen_by_release_and_else_by_body() -> None:
    old, new = make_row(deepspeed=">=1.0,<2.0", bodies=(BODY,)), make_row(deepspeed=">=2.0,<3.0", bodies=(OTHER,))
    for version, expected in (("0.5", old), ("1.0", old), ("1.9", old), ("2.0", new), ("2.5", new), ("9.0", new)):
        assert choose((old, new), version, None) is expected, version
    assert choose((old, new), None, BODY) is old
    assert choose((old, new), None, OTHER) is new
    assert choose((old, new), None, "a" * 16) is new


# --- which release is it ----------------------------------------------------------------------------------------------


def package_in(tree: Path) -> types.ModuleType:
    package = types.ModuleType("deepspeed")
    package.__path__ = [str(tree / "deepspeed")]
    return package


@pytest.mark.parametrize(
    ("version", "expected"), [("2.0", "2.0"), ("2.0+abc", "2.0+abc"), ("0.0.0", None), (None, None)]
)
def test_version_comes_from_the_metadata_beside_the_package(
    version: str | None, expected: str | None, tmp_path: Path
) -> None:
    assert imported_version(package_in(make_tree(tmp_path, version))) == expected


def test_a_source_tree_has_no_version(tmp_path: Path) -> None:
    make_tree(tmp_path)
    (tmp_path / "setup.py").touch()
    assert imported_version(package_in(tmp_path)) is None, "its metadata may be older than its code"


def test_two_versions_are_none(tmp_path: Path) -> None:
    make_tree(tmp_path, "2.0")
    make_tree(tmp_path, "2.1")
    assert imported_version(package_in(tmp_path)) is None


def test_another_copy_on_the_path_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(tmp_path / "other", "1.0")
    make_tree(tmp_path / "mine", None)
    monkeypatch.syspath_prepend(tmp_path / "other")
    assert imported_version(package_in(tmp_path / "mine")) is None


# --- looking a site up ------------------------------------------------------------------------------------------------


def test_find_calls_nothing() -> None:
    class Lazy:
        boom = property(lambda self: 1 / 0)

    module = types.ModuleType("m")
    module.Lazy = Lazy  # type: ignore[attr-defined]
    module.Derived = type("Derived", (Lazy,), {})  # type: ignore[attr-defined]
    found = find(module, "m:Lazy.boom")
    assert found is not None
    assert (found.attribute, found.inherited) == (vars(Lazy)["boom"], False)
    inherited = find(module, "m:Derived.boom")
    assert inherited is not None
    assert inherited.inherited
    for absent in ("m:Lazy.no", "m:No.boom", "m:Lazy.boom.deeper", "m:no"):
        assert find(module, absent) is None
