"""`import dspatch` before, after, between and again: one wrapper, whatever the order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.environment import free_port, rank_environment
from tests.support.installs import Environment, run
from tests.support.paths import ROOT
from tests.support.trees import tree

ORDERS = {
    "before": "import dspatch, deepspeed",
    "after": "import deepspeed, dspatch",
    "both": "import dspatch, deepspeed, importlib; importlib.import_module('dspatch')",
    "a submodule first": "import dspatch, deepspeed.runtime.engine",
    "looked for, not imported": "import dspatch, importlib.util as u; assert u.find_spec('deepspeed'); import deepspeed",
    "looked for before": "import importlib.util as u; assert u.find_spec('deepspeed'); import dspatch, deepspeed",
    "dspatch reloaded before": "import dspatch, importlib; importlib.reload(dspatch); import deepspeed",
    "dspatch reloaded after": "import dspatch, deepspeed, importlib; importlib.reload(dspatch)",
    "deepspeed reloaded": "import dspatch, deepspeed, importlib; importlib.reload(deepspeed.runtime.engine)",
    "in a thread": "import dspatch, threading; t = threading.Thread(target=__import__, args=('deepspeed',)); t.start(); t.join()",
}


@pytest.mark.parametrize("order", ORDERS)
def test_one_wrapper(order: str, checkout: Environment) -> None:
    done = checkout.code(f"{ORDERS[order]}\nimport look; print(look.guards())")
    assert done.out == "1\n", done.err


def test_without_dspatch_there_is_none(checkout: Environment) -> None:
    assert checkout.code("import deepspeed, look; print(look.guards())").out == "0\n"


def test_looking_for_deepspeed_costs_nothing(checkout: Environment) -> None:
    """Many libraries only want to know whether it is there."""
    code = """
import dspatch, importlib.util, importlib.machinery, look
spec = importlib.util.find_spec("deepspeed")
assert spec.name == "deepspeed" and spec.origin.endswith("__init__.py") and spec.loader.is_package("deepspeed")
assert look.loaded() == [] and {row.state for row in dspatch.status()} == {"armed"}
import deepspeed
plain = importlib.machinery.SourceFileLoader
assert type(deepspeed.__loader__) is type(deepspeed.__spec__.loader) is plain
assert importlib.util.find_spec("deepspeed").loader is deepspeed.__loader__
print(look.guards())
"""
    done = checkout.code(code)
    assert done.out == "1\n", done.err


def test_a_spec_that_was_found_before_deactivation(checkout: Environment) -> None:
    code = """
import dspatch, importlib.util, sys, look
spec = importlib.util.find_spec("deepspeed")
{}
module = sys.modules["deepspeed"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(look.guards())
"""
    assert checkout.code(code.format("dspatch.deactivate()")).out == "0\n"
    assert checkout.code(code.format("")).out == "1\n"


ASKING = """
import sys
class Asking:
    def find_spec(self, name, path=None, target=None):
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        return next(filter(None, found), None) if name == "deepspeed" else None
sys.meta_path.insert(0, Asking())
"""


@pytest.mark.parametrize("order", [f"{ASKING}\nimport dspatch", f"import dspatch\n{ASKING}"])
def test_another_finder_that_asks_all_others(order: str, checkout: Environment) -> None:
    done = checkout.code(f"{order}\nimport deepspeed, look; print(look.guards())")
    assert done.out == "1\n", done.err


@pytest.mark.parametrize(
    "theirs", ["", "wrapt.register_post_import_hook(lambda module: told.append('theirs'), 'deepspeed')"]
)
def test_what_hangs_on_deepspeed_itself_is_told(theirs: str, checkout: Environment) -> None:
    """A patch could sit in the package's own `__init__`, and other tools' hooks must be called once."""
    code = f"""
import dspatch, wrapt
told = []
{theirs}
from dspatch.patching.imports import ImportWatch
from dspatch.activation import finder
start = finder._start_engine
def starting(settings):
    start(settings)
    ImportWatch(lambda module: told.append("ours")).watch("deepspeed")
finder._start_engine = starting
import deepspeed
print(*sorted(told))
"""
    done = checkout.code(code)
    assert done.out == ("ours theirs\n" if theirs else "ours\n"), done.err


def test_a_folder_named_deepspeed_without_code(checkout: Environment, tmp_path: Path) -> None:
    """Not DeepSpeed, and no reason to wake up; the real one may be found later."""
    (tmp_path / "deepspeed").mkdir()
    code = """
import dspatch, deepspeed, sys
assert deepspeed.__file__ is None and "wrapt" not in sys.modules
del sys.modules["deepspeed"]
sys.path.append({!r})
import deepspeed, look
print(look.guards())
"""
    assert run([checkout.python, "-c", code.format(str(checkout.path[0]))], tmp_path, ROOT).out == "1\n"


def test_the_finder_is_gone_after_the_import(checkout: Environment) -> None:
    code = "from dspatch.activation import finder\nprint(finder.is_waiting())\nimport deepspeed\nprint(finder.is_waiting())"
    assert checkout.code(code).out.split() == ["True", "False"]


def test_a_process_without_deepspeed_is_left_alone(checkout: Environment) -> None:
    code = """
import dspatch, importlib.util
assert importlib.util.find_spec("deepspeed") is None
for _ in range(2):
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        assert error.name == "deepspeed"
    else:
        raise SystemExit("imported")
assert "wrapt" not in __import__("sys").modules
"""
    done = run([checkout.python, "-c", code], ROOT)
    assert (done.code, done.out, done.err) == (0, "", "")


def test_an_import_of_deepspeed_that_fails_is_guarded_when_tried_again(checkout: Environment) -> None:
    code = """
import dspatch, sys
sys.modules["deepspeed.runtime.engine"] = None  # makes the import fail
try:
    import deepspeed
except ImportError:
    del sys.modules["deepspeed.runtime.engine"]
else:
    raise SystemExit("imported")
import deepspeed, look
print(look.guards())
"""
    assert checkout.code(code).out == "1\n"


REAL = """
import sys
if "before" in sys.argv:
    import dspatch
import deepspeed
engine = deepspeed.DeepSpeedEngine
if "after" in sys.argv:
    plain = dict(vars(engine))
    import dspatch
rows = dspatch.status()
# A module that this release no longer has is never imported, and its row stays armed.
waiting = {row.site.split(":")[0] for row in rows if row.state == "armed"}
assert rows and not waiting & set(sys.modules), waiting
print(*sorted({(row.state, row.tier) for row in rows if row.state != "armed"}))
assert vars(engine)["load_checkpoint"]._self_patch_id
dspatch.deactivate()
assert not any(hasattr(value, "_self_patch_id") for value in vars(engine).values())
if "after" in sys.argv:
    assert all(vars(engine)[name] is value for name, value in plain.items())
assert {row.state for row in dspatch.status()} == {"not triggered"}
"""


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_real_release(order: str, checkout: Environment) -> None:
    real = tree("newest")
    environ = rank_environment(real, rank=0, world=1, port=free_port())
    done = run([checkout.python, "-c", REAL, order], real.path, ROOT, **{**environ, "PYTHONPATH": None})
    assert done.code == 0, done.err
    tiers = done.out.splitlines()[-1]
    assert "('applied', 'tested')" in tiers
    assert "failed" not in tiers and "incompatible" not in tiers
