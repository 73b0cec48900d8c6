"""The patch engine: matrix -> gate -> wrapper -> ledger -> undo, for one process.

``arm`` loads the matrix and watches the modules that have sites; when one has been executed, each of its rows is
judged and, if it may be, applied. Nothing in here may break the import of deepspeed, and nothing may fail quietly:
every failure is in the ledger, in the log, and in the tripwire on ``load_checkpoint``.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType

from dspatch.patching import gate, ledger, tripwire
from dspatch.patching.body import fingerprint
from dspatch.patching.imports import ImportWatch
from dspatch.patching.ledger import LedgerRow
from dspatch.patching.matrix import Matrix, Row, load
from dspatch.patching.site import Target, find
from dspatch.patching.tripwire import Tripwire
from dspatch.patching.version import imported_version
from dspatch.patching.wrapper import Installed, WrapperFunction, install, is_live, remove
from dspatch.settings import Settings
from dspatch.settings import read as read_settings

_log = logging.getLogger("dspatch")

SOURCE_TREE = "source tree"

#: ``DSPATCH_DISABLE=*``
EVERY_PATCH = "*"

#: Ledger entries for a matrix that cannot be used at all, and for a defect of this file.
_MATRIX_ID = "compat-matrix"
_ENGINE_ID = "patch-engine"

_DISABLED = "DSPATCH_DISABLE"

_TRIPWIRE_MODULE = tripwire.SITE.partition(":")[0]


class PatchEngine:
    """All patches of one process. The module's functions use the only instance; tests make their own.

    The lock is held while wrappers go on and off, never while foreign code runs or a module is imported: import locks
    of other threads would close the circle.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._watch = ImportWatch(self._module_executed)
        self._armed = False
        self._announced = False
        self._said: set[str] = set()
        self._settings: Settings | None = None
        self._matrix = Matrix((), {})
        self._ledger: dict[str, LedgerRow] = {}
        self._installed: list[Installed] = []
        self._tripwire = Tripwire()

    # --- on and off ---------------------------------------------------------------------------------------------------

    def arm(self, settings: Settings | None = None, matrix: Matrix | None = None) -> None:
        """Watch DeepSpeed's modules and patch them, those that are imported already at once. Safe to call again.

        Args:
            settings: read from the environment by default. ``DSPATCH=0`` beats code: nothing is done.
            matrix: another than the installed one, for tests.
        """
        chosen = settings if settings is not None else read_settings()
        if chosen.switch == "off":
            return
        with self._lock:
            if not self._armed:
                self._begin(chosen, matrix)
        # Outside the lock: this runs hooks, which import patch files.
        names = dict.fromkeys((*self._matrix.modules(), _TRIPWIRE_MODULE))
        # The loader's module comes last, as in an import of deepspeed, and so the announcement can name everything.
        for name in sorted(names, key=lambda one: one == _TRIPWIRE_MODULE):
            self._watch.watch(name)

    def disarm(self) -> None:
        """Take every wrapper off again, so that DeepSpeed holds the very objects it held before."""
        with self._lock:
            self._armed = False
            left = {item.wrapper._self_patch_id: remove(item) for item in reversed(self._installed)}
            self._installed.clear()
            for patch in self._ledger:
                self._note(patch, state=ledger.NOT_TRIGGERED, reason=left.get(patch) or "deactivated")

    def status(self) -> list[LedgerRow]:
        """The ledger, in the order of the matrix. What is said to be applied was looked up just now."""
        with self._lock:
            if self._ledger:
                return [self._as_it_is(row) for row in self._ledger.values()]
        why = "deepspeed is not imported"
        return [LedgerRow(row.id, row.site, ledger.NOT_TRIGGERED, why) for row in load().rows]

    def _begin(self, settings: Settings, matrix: Matrix | None) -> None:
        self._settings, self._armed = settings, True
        self._tripwire.reset(settings.mode)
        self._said.clear()
        self._ledger = {}
        try:
            self._matrix = matrix if matrix is not None else load()
        except Exception as error:
            # Not raised: this is the middle of `import deepspeed`. The first load will say it.
            self._matrix = Matrix((), {})
            self._fail(_MATRIX_ID, tripwire.SITE, error)
            return
        self._ledger = {row.id: LedgerRow(row.id, row.site, ledger.ARMED) for row in self._matrix.rows}
        known = self._matrix.ids()
        strangers = [name for name in settings.disable if name not in (*known, EVERY_PATCH)]
        if strangers:
            self._warn(f"DSPATCH_DISABLE names no patch: {', '.join(strangers)} (there are: {', '.join(known)})")

    # --- one module ---------------------------------------------------------------------------------------------------

    def _module_executed(self, module: ModuleType) -> None:
        """What the import watch calls. Never raises."""
        with self._lock:
            if not self._armed:
                return
        try:
            version = _imported_version()
            for chain in self._matrix.chains():
                if chain[0].defining_module == module.__name__:
                    self._handle_chain(chain, module, version)
            self._announce(module, version)
        except Exception as error:
            self._fail(_ENGINE_ID, module.__name__, error)
        self._stretch_tripwire()

    def _handle_chain(self, chain: Sequence[Row], module: ModuleType, version: str | None) -> None:
        row = chain[-1]
        try:
            row = gate.choose(chain, version, _body(module, row))
            for other in chain:
                if other is not row:
                    why = f"{row.id} is for this release"
                    self._note(other.id, state=ledger.SKIPPED, reason=why, tier=gate.NOT_NEEDED)
            self._handle(row, module, version)
        except Exception as error:
            self._fail(row.id, row.site, error)

    def _handle(self, row: Row, module: ModuleType, version: str | None) -> None:
        assert self._settings is not None
        known_as = version or SOURCE_TREE
        if row.id in self._settings.disable or EVERY_PATCH in self._settings.disable:
            self._note(row.id, state=ledger.SKIPPED, reason=_DISABLED, tier="", version=known_as)
            return
        if is_live(module, row.site, row.id):
            return
        target = find(module, row.site)
        verdict = gate.judge(row, target, version, self._settings.unknown, _body(module, row))
        if verdict.action == gate.APPLY and target is not None:
            wrapper = getattr(import_module(row.module), row.wrapper)
            self._apply(row, target, wrapper, LedgerRow(row.id, row.site, "", verdict.reason, verdict.tier, known_as))
            return
        self._note(row.id, state=ledger.SKIPPED, reason=verdict.reason, tier=verdict.tier, version=known_as)
        if verdict.action == gate.REFUSE:
            self._tripwire.not_applicable(row.id, row.site, verdict.reason)

    def _apply(self, row: Row, target: Target, wrapper: WrapperFunction, entry: LedgerRow) -> None:
        with self._lock:
            if not self._armed:  # deactivated while the module was being imported
                self._note(row.id, state=ledger.NOT_TRIGGERED, reason="deactivated")
                return
            if is_live(sys.modules[row.defining_module], row.site, row.id):  # another thread was faster
                return
            installed = install(target, wrapper, row.id)
            self._installed.append(installed)
            names = [f"{module.__name__}.{name}" for module, name in installed.aliases]
            reasons = (entry.reason, f"also patched: {', '.join(names)}" if names else "")
            self._ledger[row.id] = replace(
                entry, state=ledger.APPLIED, reason="; ".join(reason for reason in reasons if reason)
            )
            self._tripwire.forget(row.id)

    def _fail(self, patch: str, site: str, error: Exception) -> None:
        assert self._settings is not None
        summary = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        text = "\n".join([summary, "", *"".join(traceback.format_exception(error)).splitlines()])
        with self._lock:
            row = self._ledger.get(patch, LedgerRow(patch, site, ledger.FAILED))
            self._ledger[patch] = replace(row, state=ledger.FAILED, reason=text)
            if EVERY_PATCH not in self._settings.disable:
                self._tripwire.failed(patch, site, summary, EVERY_PATCH if patch in (_MATRIX_ID, _ENGINE_ID) else patch)
        _log.error("the patch %s on %s failed, loading a checkpoint will say so again:\n%s", patch, site, text)

    def _stretch_tripwire(self) -> None:
        """Put the tripwire on the loader if there is anything to say and the loader is there."""
        module = sys.modules.get(_TRIPWIRE_MODULE)
        target = find(module, tripwire.SITE) if module is not None else None
        with self._lock:
            if not (self._armed and self._tripwire) or target is None or not target.is_function:
                return
            if module is not None and not is_live(module, tripwire.SITE, tripwire.PATCH_ID):
                self._installed.append(install(target, self._tripwire, tripwire.PATCH_ID))

    # --- what is there, and saying it ---------------------------------------------------------------------------------

    def _note(self, patch: str, **what: str) -> None:
        with self._lock:
            self._ledger[patch] = replace(self._ledger[patch], **what)

    def _as_it_is(self, row: LedgerRow) -> LedgerRow:
        if row.state != ledger.APPLIED:
            return row
        module = sys.modules.get(row.site.partition(":")[0])
        if module is not None and is_live(module, row.site, row.patch):
            return row
        return replace(row, state=ledger.SKIPPED, reason="no longer in place: the function was replaced since")

    def _announce(self, module: ModuleType, version: str | None) -> None:
        """Say what happened in this module: one WARNING for what is not as tested, one INFO in a process's life."""
        rows = [row for row in self._ledger.values() if row.site.partition(":")[0] == module.__name__]
        on = [row for row in rows if row.state == ledger.APPLIED]
        off = [row for row in rows if row.state == ledger.SKIPPED and row.tier != gate.NOT_NEEDED]
        disabled = ", ".join(row.patch for row in off if row.reason == _DISABLED)
        unfit = "; ".join(f"{row.patch} ({row.reason})" for row in off if row.reason != _DISABLED)
        unread = "; ".join(f"{row.patch} ({row.reason})" for row in on if row.tier == gate.COMPATIBLE)
        parts = [
            f"not applied: {unfit}" if unfit else "",
            f"switched off by DSPATCH_DISABLE: {disabled}" if disabled else "",
            f"applied where dspatch was not tested: {unread}" if unread else "",
        ]
        name = f"DeepSpeed {version}" if version else "DeepSpeed from a source tree"
        if any(parts):
            self._warn(f"{name}, {module.__name__}: {'; '.join(filter(None, parts))}. See `dspatch matrix check`.")
        everywhere = [row.patch for row in self._ledger.values() if row.state == ledger.APPLIED]
        if everywhere and module.__name__ == _TRIPWIRE_MODULE and not self._announced:
            self._announced = True
            if os.environ.get("RANK", "0") == "0":
                _log.info("active on %s: %s", name, ", ".join(everywhere))

    def _warn(self, text: str) -> None:
        """WARNING, once per activation: activating twice, or reloading a module, says nothing new."""
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s", text)


def _imported_version() -> str | None:
    package = sys.modules.get("deepspeed")
    return imported_version(package) if package is not None else None


def _body(module: ModuleType, row: Row) -> str | None:
    judged = find(module, row.judged_site)
    return fingerprint(judged.attribute) if judged is not None else None


_ENGINE = PatchEngine()


def arm(settings: Settings | None = None) -> None:
    """Arm the patches of this process; see ``PatchEngine.arm``."""
    _ENGINE.arm(settings)


def disarm() -> None:
    """Undo everything; see ``PatchEngine.disarm``."""
    _ENGINE.disarm()


def status() -> list[LedgerRow]:
    """The ledger of this process; see ``PatchEngine.status``."""
    return _ENGINE.status()


def known_patch_ids() -> tuple[str, ...]:
    """Every patch id of the matrix.

    Raises:
        MatrixError: the matrix breaks a rule.
    """
    return load().ids()
