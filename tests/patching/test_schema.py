"""compat_matrix.yaml: the real file keeps every rule, and each rule refuses a copy that breaks it."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dspatch.errors import MatrixError
from dspatch.patching import matrix, schema
from dspatch.patching.matrix import load
from tests.support.paths import MATRIX, ROOT

#: Two rows that follow each other on one site, and one that stands on it beside them.
GOOD: dict[str, Any] = {
    "schema": 1,
    "trees": {"newest": "2.0"},
    "rows": [
        {
            "id": "first",
            "site": "deepspeed.a:C.f",
            "module": "dspatch.patches.one",
            "wrapper": "check_one",
            "deepspeed": ">=1.0,<1.5",
            "tested": ["1.2"],
            "bodies": ["0123456789abcdef"],
            "needs": ["tag"],
            "does": "observes",
            "why": "a reason",
            "faults": ["A1"],
            "upstream": {"reference": "somewhere", "introduced": "1.0", "fixed_in": "2.0"},
            "scenarios": ["a_scenario"],
        },
        {
            "id": "second",
            "site": "deepspeed.a:C.f",
            "module": "dspatch.patches.one",
            "wrapper": "check_one",
            "deepspeed": ">=1.5,<=2.0",
            "tested": ["2.0"],
            "bodies": ["0123456789abcdef"],
            "does": "prevents",
            "unknown": "apply",
            "body_of": "deepspeed.a:g",
            "why": "a reason",
            "scenarios": ["a_scenario"],
        },
        {
            "id": "third",
            "site": "deepspeed.a:C.f",
            "module": "dspatch.patches.two",
            "wrapper": "check_two",
            "deepspeed": ">=1.2,<=1.8",
            "tested": ["1.5"],
            "bodies": ["0123456789abcdef"],
            "does": "repairs",
            "why": "a reason",
            "beside": ["first", "second"],
            "scenarios": ["a_scenario"],
        },
    ],
    "faults": [
        {
            "id": "A1",
            "title": "a loss",
            "deepspeed": [">=1.0,<1.5", ">=1.7,<=2.0"],
            "does": "caught",
            "shown": ["test_a"],
        },
        {"id": "A2", "title": "another", "deepspeed": [">=1.0,<1.5"], "does": "not yet", "note": "more"},
    ],
}

Break = Callable[[dict[str, Any]], Any]


def row(position: int, **changes: Any) -> Break:
    return lambda data: data["rows"][position].update(changes)


def without(position: int, name: str) -> Break:
    return lambda data: data["rows"][position].pop(name)


def fault(position: int, **changes: Any) -> Break:
    return lambda data: data["faults"][position].update(changes)


#: What is done to the good copy -> what the error has to say.
BROKEN: dict[str, tuple[Break, str]] = {
    "other schema": (lambda data: data.update(schema=2), "schema is 2"),
    "unknown top field": (lambda data: data.update(extra=1), "unknown field 'extra'"),
    "no trees": (lambda data: data.pop("trees"), "the field trees is absent"),
    "tree as number": (lambda data: data["trees"].update(newest=2.0), "trees is no mapping"),
    "tree no version": (lambda data: data["trees"].update(newest="latest"), "trees: newest"),
    "no rows": (lambda data: data.update(rows=[]), "rows is no list"),
    "row no mapping": (lambda data: data["rows"].append("x"), "row 3: is no mapping"),
    "unknown field": (row(0, sites=[]), "row first: unknown field 'sites'"),
    "empty text": (row(0, why=" "), "why is no text"),
    "version as number": (row(0, tested=[1.2]), "tested is no list of texts"),
    "no scenario": (row(0, scenarios=[]), "row first: scenarios is empty"),
    "no body": (row(0, bodies=[]), "bodies is empty"),
    "listed twice": (row(0, tested=["1.2", "1.2"]), "tested lists something twice"),
    "unknown upstream field": (row(0, upstream={"fixed": "1"}), "upstream: unknown field 'fixed'"),
    "upstream no mapping": (row(0, upstream="x"), "upstream is no mapping"),
    "upstream no version": (row(0, upstream={"fixed_in": "soon"}), "upstream fixed_in"),
    "bad id": (row(0, id="First one"), "the id is not of the form"),
    "bad site": (row(0, site="deepspeed.a.C.f"), "is not of the form deepspeed.module:Qual.name"),
    "site elsewhere": (row(0, site="torch.a:f"), "is not of the form deepspeed.module:Qual.name"),
    "body of another module": (row(1, body_of="deepspeed.b:g"), "body_of is in another module"),
    "bad range": (row(0, deepspeed="~=1.0"), "row first: deepspeed: '~=1.0' is no range"),
    "empty range": (row(0, deepspeed=">=1.5,<1.0"), "holds no version"),
    "tested outside": (row(0, tested=["1.7"]), "tested 1.7 is outside"),
    "tested no version": (row(0, tested=["new"]), "tested: 'new' is no version"),
    "bad body": (row(0, bodies=["0123"]), "body '0123' is not"),
    "unknown does": (row(0, does="fixes"), "does is 'fixes'"),
    "unknown unknown": (row(0, unknown="maybe"), "unknown is 'maybe'"),
    "long why": (row(0, why="a\nb"), "why is more than one line"),
    "bad parameter": (row(0, needs=["a tag"]), "needs: 'a tag'"),
    "unknown module": (row(0, module="dspatch.patches.three"), "unknown module dspatch.patches.three"),
    "module elsewhere": (row(0, module="os.one"), "unknown module os.one"),
    "unknown wrapper": (row(0, wrapper="check_on"), "unknown wrapper check_on"),
    "same id": (
        lambda data: data["rows"].append(data["rows"][0] | {"id": "third", "site": "deepspeed.a:h"}),
        "the id third is given to 2 rows",
    ),
    "overlap": (row(0, deepspeed=">=1.0,<=1.5"), "overlap on deepspeed.a:C.f"),
    "gap": (row(0, deepspeed=">=1.0,<1.4"), "leave a gap on deepspeed.a:C.f"),
    "beside nothing": (row(2, beside=["fourth"]), "beside names fourth"),
    "beside itself": (row(2, beside=["third"]), "beside names third"),
    "not said to be beside": (without(2, "beside"), "overlap on deepspeed.a:C.f"),
    "no catalogue": (lambda data: data.pop("faults"), "the field faults is absent"),
    "catalogue no list": (lambda data: data.update(faults={}), "faults is no list"),
    "fault no mapping": (lambda data: data["faults"].append("x"), "fault 2: is no mapping"),
    "unknown fault field": (fault(0, fix="x"), "fault A1: unknown field 'fix'"),
    "fault without title": (lambda data: data["faults"][0].pop("title"), "fault A1: the field title is absent"),
    "fault with empty title": (fault(0, title=""), "fault A1: title is no text"),
    "fault with a long title": (fault(0, title="a\nb"), "fault A1: title is more than one line"),
    "fault with a long note": (fault(1, note="a\nb"), "fault A2: note is more than one line"),
    "bad fault id": (fault(1, id="second"), "the id is not a letter and a number"),
    "fault range as text": (fault(0, deepspeed=">=1.0,<2.0"), "fault A1: deepspeed is no list of texts"),
    "fault without range": (fault(0, deepspeed=[]), "fault A1: deepspeed is empty"),
    "bad fault range": (fault(0, deepspeed=["<1.0"]), "fault A1: deepspeed: '<1.0' is no range"),
    "fault ranges overlap": (fault(0, deepspeed=[">=1.0,<1.5", ">=1.4,<=2.0"]), "overlap, or are not in order"),
    "fault ranges out of order": (fault(0, deepspeed=[">=1.7,<=2.0", ">=1.0,<1.5"]), "overlap, or are not in order"),
    "unknown word about a fault": (fault(0, does="fixed"), "fault A1: does is 'fixed'"),
    "a claim that no test shows": (fault(0, shown=[]), "does is 'caught', and shown names no test"),
    "a test that shows nothing": (fault(1, shown=["test_a"]), "does is 'not yet', and shown names a test"),
    "run with no version": (fault(0, ran=["newest"]), "fault A1: ran: 'newest' is no version"),
    "not run for no reason": (lambda data: data["faults"][1].update(does="not run", note="") or data["faults"][1].pop("note"),
                              "does is 'not run', and no note says why"),
    "same fault id": (fault(1, id="A1"), "the id A1 is given to 2 faults"),
    "fault outside the catalogue": (row(0, faults=["A1", "A9"]), "row first: the fault A9 is not in the catalogue"),
    "file without row": (lambda data: data["rows"].pop(2), "dspatch.patches.two has no row"),
    **{f"without {name}": (without(0, name), f"the field {name} is absent") for name in schema._REQUIRED},
}


@pytest.fixture
def patch_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two patch files instead of the real ones."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(f"def check_{name}(wrapped, instance, args, kwargs):\n    return 1\n")
    monkeypatch.setattr(schema, "find_spec", lambda name: _Spec([str(tmp_path)]))


class _Spec:
    def __init__(self, folders: list[str]) -> None:
        self.submodule_search_locations = folders


def test_the_good_copy_is_good(patch_files: None) -> None:
    built = schema.build(GOOD, "good")
    assert built.ids() == ("first", "second", "third")
    assert [[found.id for found in chain] for chain in built.chains()] == [["first", "second"], ["third"]]
    assert [found.unknown for found in built.rows] == ["apply", "apply", "skip"], (
        "only what observes, unless it says so"
    )
    assert [found.id for found in built.for_version("1.5")] == ["second", "third"]
    assert built.for_version(None) == built.rows
    assert built.modules() == ("deepspeed.a",)
    assert [(found.id, found.does, found.shown, found.note) for found in built.faults] == [
        ("A1", "caught", ("test_a",), ""), ("A2", "not yet", (), "more"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "ids", "was_read"),
    [("0.9", [], False), ("1.2", ["A1", "A2"], True), ("1.6", [], True), ("2.0", ["A1"], True), ("3.0", ["A1"], False)],
)
def test_faults_of_a_release(version: str, ids: list[str], was_read: bool, patch_files: None) -> None:
    built = schema.build(GOOD, "good")
    assert [found.id for found in built.faults_of(version)] == ids
    assert built.was_read(version) is was_read


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_copy_is_refused(name: str, patch_files: None) -> None:
    breaks, says = BROKEN[name]
    data = copy.deepcopy(GOOD)
    breaks(data)
    with pytest.raises(MatrixError, match=re.escape(says)):
        schema.build(data, "broken")


def test_every_rule_function_is_broken_here(patch_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule without a broken copy would go unnoticed: each, left out, lets some copy through."""
    for name in ("_ROW_RULES", "_FAULT_RULES", "_MATRIX_RULES"):
        rules = getattr(schema, name)
        for rule in rules:
            monkeypatch.setattr(schema, name, tuple(other for other in rules if other is not rule))
            assert any(_passes(breaks) for breaks, _ in BROKEN.values()), f"{rule.__name__} refuses no copy alone"
        monkeypatch.setattr(schema, name, rules)


def _passes(breaks: Break) -> bool:
    data = copy.deepcopy(GOOD)
    breaks(data)
    try:
        schema.build(data, "broken")
    except (MatrixError, TypeError):
        return False
    return True


def test_all_faults_are_told_at_once(patch_files: None) -> None:
    data = copy.deepcopy(GOOD)
    data["rows"][0].update(does="x", bodies=["y"])
    data["rows"][2].update(tested=["9"])
    with pytest.raises(MatrixError, match=r"(?s)breaks 3 rule.*does is 'x'.*body 'y'.*tested 9"):
        schema.build(data, "broken")


@pytest.mark.parametrize("text", ["rows: [", "- 1", "!!python/object/apply:os.getcwd []", ""])
def test_no_yaml_or_no_mapping(text: str, tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(text)
    with pytest.raises(MatrixError):
        load(file)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="cannot be read"):
        load(tmp_path / "none.yaml")


# --- the real file ----------------------------------------------------------------------------------------------------


def test_the_real_matrix_keeps_the_rules() -> None:
    built = load()
    assert built.rows
    assert matrix.default_path().samefile(MATRIX)
    assert {"oldest", "newest", "stage0_loses_moments"} <= set(built.trees)


def test_the_real_trees_lie_in_the_ranges() -> None:
    built = load()
    for version in built.trees.values():
        assert built.for_version(version), version


def test_every_row_has_a_scenario_that_switches_it_off() -> None:
    """A scenario is a group of tests, ``test_<scenario>...`` in tests/faults; one of them names the row, to disable it."""
    groups: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests" / "faults").glob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                groups.setdefault(node.name, []).append(ast.get_source_segment(source, node) or "")
    for found in load().rows:
        for scenario in found.scenarios:
            tests = [text for name, texts in groups.items() if name.startswith(f"test_{scenario}") for text in texts]
            assert tests, f"{found.id}: no test_{scenario}... in tests/faults"
            off = [text for text in tests if "disable" in text and f'"{found.id}"' in text.replace(",", '"')]
            assert off, f"{found.id}: no test_{scenario}... switches the patch off"


def test_the_catalogue_claims_what_tests_show() -> None:
    written = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    tests = set(re.findall(r"^def (test_\w+)\(", written, re.MULTILINE))
    for found in load().faults:
        assert set(found.shown) <= tests, f"{found.id}: no {sorted(set(found.shown) - tests)} in tests"


def test_the_catalogue_agrees_with_the_patches() -> None:
    """What is said to be repaired has a row that repairs it, and what a row repairs is said to be."""
    built = load()
    families = {found.id[0] for found in built.faults}
    assert {"A", "D", "E", "F", "G"} <= families
    for does, said in (("repairs", "repaired"), ("prevents", "prevented")):
        rows = {name for found in built.rows if found.does == does for name in found.faults}
        listed = {found.id for found in built.faults if found.does == said}
        assert rows <= listed, f"a row {does} {sorted(rows - listed)}"
        assert does == "prevents" or listed == rows


def test_the_matrix_is_the_only_place_with_versions() -> None:
    versions = {version for found in load().rows for version in found.tested}
    text = yaml.safe_load(MATRIX.read_text(encoding="utf-8"))
    versions |= set(text["trees"].values())
    folders = [ROOT / "dspatch", ROOT / "patches", ROOT / "tests"]
    for file in sorted(path for folder in folders for path in folder.rglob("*.py")):
        code = file.read_text(encoding="utf-8")
        found = [
            version for version in sorted(versions) if re.search(rf"(?<![\d.]){re.escape(version)}(?![\d.])", code)
        ]
        assert not found, f"{file.relative_to(ROOT)} names DeepSpeed {', '.join(found)}"
