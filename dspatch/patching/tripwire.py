"""The tripwire: a patch that could not be put on is not forgotten when the import is over.

An exception in an import hook fails the first import only, and whoever retries gets DeepSpeed unpatched. So the hook
never raises. It notes the trouble here, and the first load raises (``strict``) or says it again (``warn``,
``observe``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dspatch.errors import LOWER_TO_WARNING, DspatchError, PatchFailed, PatchNotApplicable, explain

#: Where the wire is stretched: every training-state load of every release goes through this function.
SITE = "deepspeed.runtime.engine:DeepSpeedEngine.load_checkpoint"
PATCH_ID = "tripwire"

_log = logging.getLogger("dspatch")


class Tripwire:
    """Collects troubles, and is the wrapper that speaks of them at a load."""

    def __init__(self) -> None:
        self.reset("strict")

    def reset(self, mode: str) -> None:
        """Forget everything, and act by ``mode`` from now on."""
        self._mode = mode
        self._troubles: dict[str, DspatchError] = {}
        self._said: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._troubles)

    def failed(self, patch: str, site: str, found: str, leave_out: str) -> None:
        """Note that a patch fits but could not be put on; ``leave_out`` is what DSPATCH_DISABLE would have to name."""
        self._troubles[patch] = PatchFailed(
            explain(
                f"the patch {patch} could not be put onto DeepSpeed",
                expected=f"a wrapper on {site}",
                found=found,
                do=[
                    "report this with the traceback from `dspatch.status()`",
                    f"or leave it out: DSPATCH_DISABLE={leave_out}",
                ],
                lower=LOWER_TO_WARNING,
            )
        )

    def not_applicable(self, patch: str, site: str, reason: str) -> None:
        """Note that a patch does not fit the DeepSpeed at hand."""
        self._troubles[patch] = PatchNotApplicable(
            explain(
                f"the patch {patch} does not fit this DeepSpeed, a load would not be guarded by it",
                expected=f"a function at {site} that compat_matrix.yaml knows",
                found=reason,
                do=[
                    "look at `dspatch matrix check PATH_OF_THE_DEEPSPEED_TREE`",
                    f"or leave it out: DSPATCH_DISABLE={patch} (DSPATCH_UNKNOWN=skip leaves out all such patches)",
                ],
                lower=LOWER_TO_WARNING,
            )
        )

    def forget(self, patch: str) -> None:
        """The patch is on after all (the module was reloaded)."""
        self._troubles.pop(patch, None)

    def __call__(
        self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """wrapt's wrapper for ``load_checkpoint``."""
        troubles = list(self._troubles.items())
        if troubles and self._mode == "strict":
            raise type(troubles[0][1])("\n".join(str(error) for _, error in troubles))
        level = logging.WARNING if self._mode == "warn" else logging.INFO
        for patch, error in troubles:
            if patch not in self._said:
                self._said.add(patch)
                _log.log(level, "%s", error)
        return wrapped(*args, **kwargs)
