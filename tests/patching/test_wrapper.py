"""Putting wrappers on, finding them and taking them off: every kind of function, every neighbour."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wrapt

from dspatch.patching.site import Target, find
from dspatch.patching.wrapper import Installed, find_wrapper, foreign_wrappers, install, is_live, remove
from tests.patching.fakes import ENGINE, make_tree
from tests.patching.wrappers import CALLS, note_call


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The loaded engine module of the small package."""
    monkeypatch.syspath_prepend(make_tree(tmp_path))
    # dspatch's own finder would patch the small package with the real matrix.
    others = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("dspatch")]
    monkeypatch.setattr(sys, "meta_path", others)
    assert "deepspeed" not in sys.modules, "a real deepspeed in the test process would be mixed up with the small one"
    import deepspeed.runtime.engine as loaded

    CALLS.clear()
    yield loaded
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
        del sys.modules[name]


def put_on(module: types.ModuleType, qualname: str) -> Installed:
    target = find(module, f"{ENGINE}:{qualname}")
    assert target is not None
    return install(target, note_call, "a-patch")


USES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "DeepSpeedEngine.load_checkpoint": (lambda m: m.DeepSpeedEngine().load_checkpoint("d", tag="t"), ("d", "t")),
    "DeepSpeedEngine.static": (lambda m: m.DeepSpeedEngine.static("t"), "static t"),
    "DeepSpeedEngine.of_class": (lambda m: m.DeepSpeedEngine.of_class("t"), "DeepSpeedEngine t"),
    "DeepSpeedEngine.inherited": (lambda m: m.DeepSpeedEngine().inherited("t"), "inherited t"),
    "resolve": (lambda m: m.resolve("t"), "resolved t"),
    "imported_helper": (lambda m: m.imported_helper("t"), "helped t"),
}


@pytest.mark.parametrize("qualname", USES)
def test_on_and_off(qualname: str, module: Any) -> None:
    use, result = USES[qualname]
    holder = module.DeepSpeedEngine if "." in qualname else module
    before = dict(vars(holder))
    installed = put_on(module, qualname)
    assert use(module) == result
    assert len(CALLS) == 1
    assert is_live(module, f"{ENGINE}:{qualname}", "a-patch")
    assert remove(installed) == ""
    assert not is_live(module, f"{ENGINE}:{qualname}", "a-patch")
    assert use(module) == result
    assert len(CALLS) == 1
    after = dict(vars(holder))
    assert before.keys() == after.keys(), "nothing is left, not even a copy of an inherited method"
    assert all(before[name] is after[name] for name in before), "the very same objects"


def test_twice_is_once(module: Any) -> None:
    first, second = put_on(module, "DeepSpeedEngine.load_checkpoint"), put_on(module, "DeepSpeedEngine.load_checkpoint")
    assert first.wrapper is second.wrapper
    module.DeepSpeedEngine().load_checkpoint("d")
    assert len(CALLS) == 1


def test_signature_name_and_kind_stay(module: Any) -> None:
    original = module.DeepSpeedEngine.load_checkpoint
    put_on(module, "DeepSpeedEngine.load_checkpoint")
    wrapped = module.DeepSpeedEngine.load_checkpoint
    assert inspect.signature(wrapped) == inspect.signature(original)
    assert (wrapped.__qualname__, wrapped.__module__) == (original.__qualname__, original.__module__)
    assert inspect.isfunction(wrapped)
    assert inspect.ismethod(module.DeepSpeedEngine().load_checkpoint)


def test_the_same_exception_object_comes_out(module: Any) -> None:
    error = KeyError("from inside")

    def load_checkpoint(self: object) -> None:
        raise error

    module.DeepSpeedEngine.load_checkpoint = load_checkpoint
    put_on(module, "DeepSpeedEngine.load_checkpoint")
    with pytest.raises(KeyError) as caught:
        module.DeepSpeedEngine().load_checkpoint()
    assert caught.value is error


# --- other names of a function ----------------------------------------------------------------------------------------


def test_aliases_are_patched_and_put_back(module: Any) -> None:
    from deepspeed.runtime import user  # type: ignore[import-not-found]

    original = user.resolve
    installed = put_on(module, "resolve")
    assert [(found.__name__, name) for found, name in installed.aliases] == [("deepspeed.runtime.user", "resolve")]
    assert user.use("t") == "resolved t"
    assert len(CALLS) == 1
    late = types.ModuleType("late")
    late.taken_later = module.resolve  # type: ignore[attr-defined]
    sys.modules["late"] = late
    try:
        remove(installed)
        assert user.resolve is module.resolve is late.taken_later is original  # type: ignore[attr-defined]
    finally:
        del sys.modules["late"]


def test_a_name_that_is_only_imported_is_patched_there_alone(module: Any) -> None:
    from deepspeed import utils  # type: ignore[import-not-found]

    installed = put_on(module, "imported_helper")
    assert installed.aliases == []
    utils.imported_helper("t")
    assert CALLS == []
    module.imported_helper("t")
    assert len(CALLS) == 1


# --- other tools ------------------------------------------------------------------------------------------------------


def wrapt_tool(holder: Any, name: str, calls: list[str]) -> None:
    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        calls.append("tool")
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(holder, name, wrapper)


def closure_tool(holder: Any, name: str, calls: list[str], note: bool = True) -> None:
    function = getattr(holder, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        calls.append("tool")
        return function(*args, **kwargs)

    setattr(holder, name, functools.wraps(function)(wrapper) if note else wrapper)


TOOLS: dict[str, Callable[[Any, str, list[str]], None]] = {
    "wrapt": wrapt_tool,
    "closure": closure_tool,
    "bare closure": functools.partial(closure_tool, note=False),
}


@pytest.mark.parametrize("below", TOOLS)
@pytest.mark.parametrize("above", TOOLS)
def test_between_two_other_tools(below: str, above: str, module: Any) -> None:
    owner, calls = module.DeepSpeedEngine, []  # type: ignore[var-annotated]
    TOOLS[below](owner, "load_checkpoint", calls)
    under_us = vars(owner)["load_checkpoint"]
    installed = put_on(module, "DeepSpeedEngine.load_checkpoint")
    TOOLS[above](owner, "load_checkpoint", calls)

    assert owner().load_checkpoint("d") == ("d", None)
    assert (len(CALLS), calls) == (1, ["tool", "tool"])
    assert is_live(module, f"{ENGINE}:DeepSpeedEngine.load_checkpoint", "a-patch")
    assert foreign_wrappers(vars(owner)["load_checkpoint"])

    left = remove(installed)
    assert owner().load_checkpoint("d") == ("d", None)
    assert (len(CALLS), calls) == (1, ["tool"] * 4), "theirs still work, ours does not run"
    if above == "wrapt":
        assert left == ""
        assert vars(owner)["load_checkpoint"].__wrapped__ is under_us
        assert find_wrapper(vars(owner)["load_checkpoint"], "a-patch") is None
    else:
        assert "switched off" in left
        assert not is_live(module, f"{ENGINE}:DeepSpeedEngine.load_checkpoint", "a-patch")

    again = put_on(module, "DeepSpeedEngine.load_checkpoint")
    owner().load_checkpoint("d")
    assert (len(CALLS), calls) == (2, ["tool"] * 6), "on again: one call, not two"
    remove(again)


def test_methods_taken_before_are_off_too(module: Any) -> None:
    installed = put_on(module, "DeepSpeedEngine.load_checkpoint")
    taken = module.DeepSpeedEngine().load_checkpoint
    remove(installed)
    assert taken("d") == ("d", None)
    assert CALLS == []


def test_a_function_that_someone_replaced_is_left_alone(module: Any) -> None:
    installed = put_on(module, "DeepSpeedEngine.load_checkpoint")
    theirs = module.DeepSpeedEngine.load_checkpoint = lambda self: "theirs"
    assert not is_live(module, f"{ENGINE}:DeepSpeedEngine.load_checkpoint", "a-patch")
    assert remove(installed) == ""
    assert vars(module.DeepSpeedEngine)["load_checkpoint"] is theirs


def test_wrappers_that_wrap_each_other_end_the_search(module: Any) -> None:
    one, two = types.SimpleNamespace(), types.SimpleNamespace()
    one.__wrapped__, two.__wrapped__ = two, one
    assert find_wrapper(one, "a-patch") is None


# --- pickle and copy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_as_before(module: Any, protocol: int) -> None:
    owner = module.DeepSpeedEngine
    subjects: dict[str, Callable[[], Any]] = {
        "method": lambda: owner().load_checkpoint,
        "on the class": lambda: owner.load_checkpoint,
        "of the class": lambda: owner.of_class,
        "static": lambda: owner.static,
        "function": lambda: module.resolve,
        "imported": lambda: module.imported_helper,
    }
    arguments = {"method": ("d",), "on the class": (owner(), "d")}
    plain = {
        name: pickle.loads(pickle.dumps(get(), protocol))(*arguments.get(name, ("t",)))
        for name, get in subjects.items()
    }
    for qualname in USES:
        put_on(module, qualname)
    for name, get in subjects.items():
        data = pickle.dumps(get(), protocol)
        assert b"dspatch" not in data, f"{name}: it must load where there is no dspatch"
        assert pickle.loads(data)(*arguments.get(name, ("t",))) == plain[name], name


def test_copies_as_before(module: Any) -> None:
    put_on(module, "DeepSpeedEngine.load_checkpoint")
    engine = module.DeepSpeedEngine()
    engine.held = engine.load_checkpoint
    twin = copy.deepcopy(engine)
    assert twin.held.__self__ is twin
    assert copy.deepcopy(module.DeepSpeedEngine.load_checkpoint) is not None
    assert copy.copy(engine.held).__self__ is engine


def test_a_target_without_readable_signature() -> None:
    target = Target("deepspeed.x:dir", types.ModuleType("x"), "dir", dir, inherited=False)
    assert target.parameters == ()
