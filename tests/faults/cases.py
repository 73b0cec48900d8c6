"""Faults of the catalogue that the same few steps show: save, harm the files, load into another engine, look.

Plain data; ``test_catalogue`` runs them. A name begins with the id of the catalogue; what follows tells cases apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Kwargs = Mapping[str, Any]

#: What is asked for in loads that leave the optimizer out.
WEIGHTS: Kwargs = {"load_optimizer_states": False}
TRIPLE = "three layers"


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        saved: ``build_engine`` of the run that saves.
        now: the same of the run that loads; None: as saved.
        arguments: of ``load_checkpoint``.
        save: more arguments of ``save_checkpoint``.
        harm: what is done to the tag folder in between.
        role: the release that loads.
        saver: the release that saves; empty: the same.
        raises: class of the error under dspatch; empty: the load goes through.
        says: texts of the error, or of the one WARNING.
        upstream: class of the error without dspatch; empty: it reports success.
        undone: without dspatch one step with lr 0 changes the weights that were loaded.
        disable: the patch that repairs it; without it the load raises ``LoadIncomplete``, or only warns.
        loud: what the WARNING or error says with the repair off.
        ranks: of both runs.
        twin: ``(saved, now, arguments)`` of a load that is healthy; None: the saving engine loads its own files.
    """

    saved: Kwargs
    now: Kwargs | None = None
    arguments: Kwargs = field(default_factory=dict)
    save: Kwargs = field(default_factory=dict)
    harm: Callable[[Path], object] | None = None
    role: str = "newest"
    saver: str = ""
    raises: str = ""
    says: tuple[str, ...] = ()
    upstream: str = ""
    undone: bool = False
    disable: str = ""
    loud: str = ""
    ranks: int = 2
    twin: tuple[Kwargs, Kwargs, Kwargs] | None = None


def refused(*says: str, **kwargs: Any) -> Case:
    """Refused on every rank before anything is touched."""
    return Case(raises="LoadRefused", says=says, **kwargs)


def caught(*says: str, **kwargs: Any) -> Case:
    """Measured after the load, raised on every rank."""
    return Case(raises="LoadIncomplete", says=says, **kwargs)


ROUND_ROBIN: Kwargs = {"stage": 2, "zero": {"round_robin_gradients": True}}

CASES: dict[str, Case] = {
    # A: flags and gates
    "A2": Case({"stage": 3}, arguments={"load_module_only": True}, disable="module-only", loud="weights mismatch",
               says=("load_module_only=True",)),
    # D: right bytes, wrong place
    "D1 stage 1": refused("another order", "third.weight, second.weight", "register the layers",
                          saved={"stage": 1, "model": TRIPLE}, now={"stage": 1, "model": f"{TRIPLE}, two of them swapped"},
                          undone=True),
    "D1 stage 3": refused("another order", "third.weight, second.weight", "register the layers",
                          saved={"stage": 3, "model": TRIPLE}, now={"stage": 3, "model": f"{TRIPLE}, two of them swapped"}),
    "D1 oldest": refused("another order", saved={"stage": 2, "model": TRIPLE}, role="oldest", undone=True,
                         now={"stage": 2, "model": f"{TRIPLE}, two of them swapped"}),
    "D2 switched off": refused("another order", "round_robin_gradients to true", saved=ROUND_ROBIN, now={"stage": 2},
                               undone=True, twin=(ROUND_ROBIN, ROUND_ROBIN, {})),
    "D2 switched on": refused("another order", "round_robin_gradients to false", saved={"stage": 2}, now=ROUND_ROBIN,
                              undone=True),
    "D3 unfrozen": refused("other parameters", "trained here, without state in the file", "first.bias",
                           saved={"stage": 2, "model": {"frozen": True}}, now={"stage": 2}, role="oldest"),
    "D3 newest": refused("other parameters", saved={"stage": 3, "model": {"frozen": True}}, now={"stage": 3},
                         upstream="RuntimeError"),
    "D8": refused("another kind of optimizer", "Lion", "eps", saved={"stage": 2, "optimizer": "adamw"},
                  now={"stage": 2, "optimizer": "lion"}),
    "D8 Adam": caught("param_groups mismatch", "decoupled_weight_decay", saved={"stage": 2, "optimizer": "adam"},
                      now={"stage": 2, "optimizer": "adamw"}),
    "D8 stage 0": refused("RMSprop", "alpha", saved={"stage": 0, "precision": "fp32", "optimizer": "adamw"},
                          now={"stage": 0, "precision": "fp32", "optimizer": "rmsprop"}),
    # F: scheduler, counters, data, client state
    "F1": Case({"stage": 2, "scheduler": "warmup"}, {"stage": 2}, says=("client_state['lr_scheduler']",),
               disable="client-scheduler", loud="this engine has no place for it"),
    **{
        f"F2 stage {stage}": Case({"stage": stage, "scheduler": "warmup"}, arguments=WEIGHTS, disable="first-rate",
                                  loud="learning rate of the restored schedule", says=("partial load",))
        for stage in (0, 2, 3)
    },
}  # fmt: skip
