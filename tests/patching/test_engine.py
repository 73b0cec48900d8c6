"""The engine in its own process, on a small package named deepspeed: what it says, undoes, survives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patching.fakes import make_tree, run_child

#: Begins every child: an engine of its own, and short names.
START = """
import logging, sys
from dspatch.activation import finder
from dspatch.errors import *
from dspatch.patching.engine import PatchEngine
from tests.patching.fakes import *
from tests.patching.wrappers import CALLS
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
finder.disarm()  # waits to say that it is off
engine = PatchEngine()
def state(): return {row.patch: row.state for row in engine.status()}
def load():
    import deepspeed
    CALLS.clear()
    return deepspeed.DeepSpeedEngine().load_checkpoint("d"), len(CALLS)
"""


def child(tree: Path, code: str, **environ: str) -> str:
    from textwrap import dedent

    return run_child(START + dedent(code), tree, **environ)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path)


def test_every_order_of_steps(tree: Path) -> None:
    done = run_child("from tests.patching.sequences import main; main(4)", tree)
    assert int(done) == 7**4


def test_says_it_once(tree: Path) -> None:
    said = child(
        tree,
        """
        known = make_row(bodies=(body_of(Path(sys.path[1]), LOAD),))
        engine.arm(settings(), make_matrix(known))
        assert state() == {"load-note": "armed"}
        import deepspeed
        row, = engine.status()
        assert (row.state, row.tier, row.version, row.reason) == ("applied", "tested", "2.0", ""), row
        engine.arm(settings()); engine.disarm(); engine.arm(settings(), make_matrix(known))
        assert load() == (("d", None), 1)
        """,
    )
    assert said.splitlines() == ["INFO active on DeepSpeed 2.0: load-note"]


def test_one_warning_for_an_unread_body(tree: Path) -> None:
    said = child(tree, "engine.arm(settings(), make_matrix(make_row()))\nprint(load())\nengine.arm()\nprint(load())")
    assert said.count("WARNING") == 1
    assert "load-note (unknown body)" in said
    assert said.count("(('d', None), 1)") == 2


def test_a_repair_stays_off_an_unread_body(tree: Path) -> None:
    said = child(
        tree,
        """
        engine.arm(settings(), make_matrix(make_row(does="repairs", unknown="skip")))
        assert load() == (("d", None), 0), "the load itself is not stopped"
        assert state() == {"load-note": "skipped"}
        """,
    )
    assert said.count("WARNING") == 1


@pytest.mark.parametrize(
    ("matrix_row", "error", "code"),
    [
        ("make_row(site=LOAD + '_gone')", "PatchNotApplicable", ""),
        ("make_row(needs=('folder',))", "PatchNotApplicable", ""),
        ("make_row(deepspeed='>=2.5,<3.0')", "PatchNotApplicable", ""),
        ("make_row(site=LOAD.replace('load_checkpoint', 'prop'))", "PatchNotApplicable", ""),
        ("make_row(module='tests.patching.no_such_file')", "PatchFailed", "ModuleNotFoundError"),
        ("make_row(wrapper='no_such_wrapper')", "PatchFailed", "AttributeError"),
    ],
)
def test_what_does_not_go_on_stops_the_first_load(matrix_row: str, error: str, code: str, tree: Path) -> None:
    said = child(
        tree,
        f"""
        matrix = make_matrix({matrix_row})
        state_then = "failed" if {error} is PatchFailed else "skipped"
        engine.arm(settings(), matrix)
        import deepspeed
        import deepspeed.runtime.engine as module
        assert state() == {{"load-note": state_then}}
        for _ in range(2):
            try:
                load()
            except {error} as caught:
                assert "load-note" in str(caught) and "DSPATCH_MODE=warn" in str(caught)
            else:
                raise SystemExit("it loaded")
        if {code!r}:
            reason = engine.status()[0].reason
            assert reason.startswith({code!r}) and "Traceback" in reason
            assert {code!r} in str(engine.status()[0])
        print("--")
        engine.disarm()
        assert load() == (("d", None), 0)
        for mode in ("warn", "observe"):
            engine.arm(settings(MODE=mode), matrix)
            assert load()[0] == load()[0] == ("d", None)
            engine.disarm()
        print("--")
        engine.arm(settings(DISABLE="load-note"), matrix)
        assert load() == (("d", None), 0)
        engine.disarm()
        if {error} is PatchNotApplicable:
            engine.arm(settings(UNKNOWN="skip"), matrix)
            assert load() == (("d", None), 0)
        """,
    )
    before, lowered, after = said.split("--\n")
    assert "ERROR" in before or "WARNING" in before
    assert lowered.count("WARNING the patch load-note") == 1
    assert lowered.count("INFO the patch load-note") == 1
    assert "switched off by DSPATCH_DISABLE: load-note" in after


def test_a_matrix_that_cannot_be_read_stops_the_first_load(tree: Path) -> None:
    child(
        tree,
        """
        import dspatch.patching.engine as engine_module
        from dspatch.patching import matrix
        engine_module.load = lambda: matrix.load("/no/such/file")
        engine.arm(settings())
        import deepspeed
        try:
            load()
        except PatchFailed as caught:
            assert "cannot be read" in str(caught)
        else:
            raise SystemExit("it loaded")
        assert state() == {"compat-matrix": "failed"}
        """,
    )


def test_a_failing_hook_does_not_break_the_import_and_a_reload_can_heal_it(tree: Path) -> None:
    child(
        tree,
        """
        import importlib, types
        engine.arm(settings(), make_matrix(make_row(module="late_patch")))
        import deepspeed
        assert state() == {"load-note": "failed"}
        late = types.ModuleType("late_patch")
        from tests.patching.wrappers import note_call as late_note
        late.note_call = late_note
        sys.modules["late_patch"] = late
        importlib.reload(deepspeed.runtime.engine)
        importlib.reload(deepspeed)
        assert state() == {"load-note": "applied"}
        assert load() == (("d", None), 1)
        """,
    )


def test_disabled_ids(tree: Path) -> None:
    said = child(
        tree,
        """
        matrix = make_matrix(make_row(), make_row(id="other", site=RESOLVE))
        engine.arm(settings(DISABLE=" other , nonsense"), matrix)
        import deepspeed
        assert state() == {"load-note": "applied", "other": "skipped"}
        engine.disarm()
        engine.arm(settings(DISABLE="*"), matrix)
        assert set(state().values()) == {"skipped"}
        """,
    )
    assert "DSPATCH_DISABLE names no patch: nonsense (there are: load-note, other)" in said


def test_the_kill_switch_beats_code(tree: Path) -> None:
    child(
        tree,
        """
        from dspatch.settings import read
        engine.arm(read({"DSPATCH": "off"}), make_matrix(make_row()))
        assert load() == (("d", None), 0)
        """,
    )


def test_status_looks_at_the_attribute(tree: Path) -> None:
    child(
        tree,
        """
        engine.arm(settings(), make_matrix(make_row()))
        import deepspeed
        deepspeed.DeepSpeedEngine.load_checkpoint = lambda self, load_dir: "theirs"
        assert "replaced" in engine.status()[0].reason
        assert load() == ("theirs", 0)
        engine.arm(settings())
        assert load() == ("theirs", 1), "activating again puts it on what is there now"
        """,
    )


def test_late_activation_names_and_patches_aliases(tree: Path) -> None:
    child(
        tree,
        """
        import deepspeed
        from deepspeed.runtime import user
        engine.arm(settings(), make_matrix(make_row(site=RESOLVE)))
        assert user.use("t") == "resolved t" and len(CALLS) == 1
        assert "also patched: deepspeed.runtime.user.resolve" in engine.status()[0].reason
        """,
    )


def test_rows_of_one_chain(tree: Path) -> None:
    child(
        tree,
        """
        old, new = make_row(deepspeed=">=1.0,<2.0", id="old", tested=()), make_row(deepspeed=">=2.0,<3.0", id="new")
        engine.arm(settings(), make_matrix(old, new))
        assert load() == (("d", None), 1)
        assert state() == {"old": "skipped", "new": "applied"}
        assert engine.status()[0].reason == "new is for this release"
        """,
    )


def test_two_rows_on_one_site_the_later_one_outside(tree: Path) -> None:
    child(
        tree,
        """
        order = []
        import types
        patch = sys.modules["ordered"] = types.ModuleType("ordered")
        def noting(name):
            def wrapper(wrapped, instance, args, kwargs):
                order.append(name)
                return wrapped(*args, **kwargs)
            return wrapper
        patch.inner, patch.outer = noting("inner"), noting("outer")
        engine.arm(settings(), make_matrix(
            make_row(id="inner", module="ordered", wrapper="inner"),
            make_row(id="outer", module="ordered", wrapper="outer", beside=("inner",))))
        load()
        assert order == ["outer", "inner"], order
        engine.disarm()
        load()
        assert order == ["outer", "inner"]
        import deepspeed
        assert type(vars(deepspeed.DeepSpeedEngine)["load_checkpoint"]).__name__ == "function"
        """,
    )


# --- imports under way, threads, processes ----------------------------------------------------------------------------

HALF = """
import importlib, sys
steps = getattr(sys, "dspatch_test_steps", None)

class DeepSpeedEngine:
    def load_checkpoint(self, load_dir, tag=None):
        return load_dir, tag

if steps:
    steps()
"""


@pytest.mark.parametrize(("steps", "calls"), [("arm", 1), ("disarm", 0), ("arm, disarm", 0), ("disarm, arm", 1)])
def test_steps_while_the_module_is_half_imported(steps: str, calls: int, tmp_path: Path) -> None:
    tree = make_tree(tmp_path, runtime__engine=HALF, runtime__user="")
    child(
        tree,
        f"""
        matrix = make_matrix(make_row())
        def arm(): engine.arm(settings(), matrix)
        disarm = engine.disarm
        if {steps.startswith("disarm")}:
            arm()
        def all_steps():
            for step in ({steps},):
                step()
        sys.dspatch_test_steps = all_steps
        assert load() == (("d", None), {calls})
        assert state() == {{"load-note": "applied" if {calls} else "not triggered"}}
        """,
    )


def test_an_import_that_fails_is_patched_when_tried_again(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, runtime__engine=HALF, runtime__user="")
    child(
        tree,
        """
        def boom(): raise RuntimeError("first time")
        sys.dspatch_test_steps = boom
        engine.arm(settings(), make_matrix(make_row()))
        try:
            import deepspeed
        except RuntimeError:
            sys.dspatch_test_steps = None
        assert load() == (("d", None), 1)
        """,
    )


def test_arming_from_another_thread_while_the_module_is_half_imported(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, runtime__engine=HALF, runtime__user="")
    child(
        tree,
        """
        import threading
        half, go_on = threading.Event(), threading.Event()
        def wait():
            half.set()
            assert go_on.wait(20)
        sys.dspatch_test_steps = wait
        importer = threading.Thread(target=lambda: __import__("deepspeed"))
        importer.start()
        assert half.wait(20)
        engine.arm(settings(), make_matrix(make_row()))
        assert state() == {"load-note": "armed"}, "not judged by half a module"
        go_on.set()
        importer.join(20)
        assert load() == (("d", None), 1)
        """,
    )


def test_threads_that_import_and_arm_at_once(tree: Path) -> None:
    child(
        tree,
        """
        import threading
        matrix, start, wrong = make_matrix(make_row()), threading.Barrier(16), []
        def work(number):
            start.wait()
            if number % 2:
                engine.arm(settings(), matrix)
            import deepspeed
            if number % 2 and state() != {"load-note": "applied"}:
                wrong.append(state())
        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads: thread.start()
        for thread in threads: thread.join(30)
        assert not wrong, wrong
        assert load() == (("d", None), 1)
        engine.disarm()
        assert load() == (("d", None), 0)
        """,
    )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children(method: str, tree: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "from dspatch.patching import engine\n"
        "from tests.patching.fakes import make_matrix, make_row, settings\n"
        "from tests.patching.wrappers import CALLS\n"
        "engine._ENGINE.arm(settings(), make_matrix(make_row()))\n"
        "import deepspeed\n"
        "def calls(queue):\n"
        "    CALLS.clear()\n"
        "    deepspeed.DeepSpeedEngine().load_checkpoint('d')\n"
        "    queue.put((len(CALLS), [row.state for row in engine.status()]))\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    queue = context.SimpleQueue()\n"
        "    process = context.Process(target=calls, args=(queue,))\n"
        "    process.start(); process.join(60)\n"
        "    assert queue.get() == (1, ['applied'])\n"
    )
    run_child(f"import runpy, sys; sys.argv = ['{script}']; import subprocess; "
              f"sys.exit(subprocess.run([sys.executable, '{script}']).returncode)", tree)  # fmt: skip
