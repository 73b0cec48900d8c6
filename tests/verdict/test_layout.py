"""The order of parameters by name."""

from __future__ import annotations

import pytest

from dspatch.verdict.layout import inferred_layout, misplaced

A, B, C = ("a", (2, 2)), ("b", (2, 2)), ("c", (3,))


def test_the_same_order_is_no_finding() -> None:
    filed = inferred_layout([(A, B), (C,)], ["a", "b", "c"], {"a": 0, "buffer": 0, "b": 0, "c": 0})
    assert filed == ((A, B), (C,))
    assert misplaced([(A, B), (C,)], filed) == []


def test_another_order_at_the_save_names_both() -> None:
    filed = inferred_layout([(A, B)], ["a", "b"], {"b": 0, "a": 0})
    assert filed is not None
    assert [(here, said.split()[0]) for here, said in misplaced([(A, B)], filed)] == [("a", "b"), ("b", "a")]


@pytest.mark.parametrize(
    ("registered", "module"),
    [
        # The groups are listed by hand, in both runs: nothing follows from the order of registration.
        (["b", "a"], {"a": 0, "b": 0}),
        (["a", "b"], {"a": 0}),
        (["a", "b"], None),
    ],
)
def test_nothing_can_be_said(registered: list[str], module: object) -> None:
    assert inferred_layout([(A, B)], registered, module) is None
