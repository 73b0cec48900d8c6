"""What a caller of ``load_checkpoint`` asked for, read by name from the call."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Components that every default load asks for, in the order in which reports list them.
COMPONENTS = (
    "weights", "frozen", "masters", "moments", "optimizer_step", "param_groups", "loss_scaler", "lr_scheduler",
    "counters",
)  # fmt: skip

#: Components of features that few engines have; a default load asks for them, too, where the engine has them.
DATA_PARTS = ("data_sampler", "random_ltd")

#: What ``load_optimizer_states=False`` leaves out. Masters are then rebuilt from the 16-bit weights.
OPTIMIZER_PARTS = frozenset({"masters", "moments", "optimizer_step", "param_groups", "loss_scaler"})

_WEIGHTS = frozenset({"weights", "frozen"})


@dataclass(frozen=True, slots=True)
class Request:
    """One call of ``load_checkpoint``.

    Attributes:
        folder: ``load_dir``.
        tag: the tag as text, as ``save_checkpoint`` writes it; None: the one that ``latest`` names.
        strict: ``load_module_strict``.
        optimizer_states: ``load_optimizer_states``.
        scheduler_states: ``load_lr_scheduler_states``.
        module_only: ``load_module_only``.
        custom_load: a ``custom_load_fn`` was given, so nobody but the caller knows what it copies.
    """

    folder: str
    tag: str | None = None
    strict: bool = True
    optimizer_states: bool = True
    scheduler_states: bool = True
    module_only: bool = False
    custom_load: bool = False

    @classmethod
    def from_call(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Request:
        """Read a call by the names of the loader's parameters, which have not moved since the oldest release.

        Raises:
            TypeError: the arguments do not fit the function; the message is Python's own.
        """
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        return cls(
            folder=_text(given["load_dir"]),
            tag=tag_text(given.get("tag")),
            strict=bool(given.get("load_module_strict", True)),
            optimizer_states=bool(given.get("load_optimizer_states", True)),
            scheduler_states=bool(given.get("load_lr_scheduler_states", True)),
            module_only=bool(given.get("load_module_only", False)),
            custom_load=given.get("custom_load_fn") is not None,
        )

    @property
    def asks_optimizer(self) -> bool:
        """Whether this call wants optimizer state restored."""
        return self.optimizer_states and not self.module_only

    @property
    def asked(self) -> frozenset[str]:
        """The components that this call wants restored, as far as the engine has them."""
        if self.module_only:
            return _WEIGHTS
        left_out = set() if self.optimizer_states else set(OPTIMIZER_PARTS)
        if not self.scheduler_states:
            left_out.add("lr_scheduler")
        return frozenset((*COMPONENTS, *DATA_PARTS)) - left_out

    def flags(self) -> str:
        """The arguments that make this a partial load, as the caller would write them."""
        written = (
            (not self.optimizer_states, "load_optimizer_states=False"),
            (self.module_only, "load_module_only=True"),
            (not self.scheduler_states, "load_lr_scheduler_states=False"),
            (not self.strict, "load_module_strict=False"),
            (self.custom_load, "custom_load_fn=..."),
        )
        return ", ".join(text for applies, text in written if applies)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


def tag_text(tag: object) -> str | None:
    """A tag of any type as ``DeepSpeedEngine.save_checkpoint`` names its folder: ``str(tag)``."""
    return None if tag is None else _text(tag)


def _text(value: object) -> str:
    return os.fsdecode(os.fspath(value)) if isinstance(value, (str, bytes, os.PathLike)) else str(value)
