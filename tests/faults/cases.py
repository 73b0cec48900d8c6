"""Faults of the catalogue that the same few steps show: save, harm the files, load into another engine, look.

Plain data; ``test_catalogue`` runs them. A name begins with the id of the catalogue; what follows tells cases apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import damage

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


def dropped(*names: str) -> Callable[[Path], None]:
    """Take entries out of the model files, as releases wrote them that did not know them."""

    def harm(folder: Path) -> None:
        for path in folder.glob("*model_states.pt"):
            damage.rewrite(path, lambda tree: [tree.pop(name) for name in names])

    return harm


def half_renamed(folder: Path) -> None:
    """Put a prefix before some names of the weights in the model file."""

    def rename(tree: dict[str, Any]) -> None:
        module = tree["module"]
        for name in [name for name in module if name.startswith("middle.1.")]:
            module[f"_orig_mod.{name}"] = module.pop(name)

    damage.rewrite(folder / "mp_rank_00_model_states.pt", rename)


BF16_OPTIMIZER: Kwargs = {"stage": 1, "config": {"data_types": {"grad_accum_dtype": "fp32"}}}
LOOSE: Kwargs = {"load_module_strict": False}
FP16: Kwargs = {"stage": 2, "precision": "fp16"}
STATIC: Kwargs = {"fp16": {"enabled": True, "loss_scale": 64}}
LTD: Kwargs = {
    "stage": 2,
    "config": {
        "data_efficiency": {
            "enabled": True,
            "data_routing": {
                "enabled": True,
                "random_ltd": {
                    "enabled": True, "total_layer_num": 2, "random_ltd_layer_num": 1, "random_ltd_layer_id": [1],
                    "model_mask_name": "mask", "model_type": "decoder", "hidden_state_order": "batch_seq_dim",
                    "random_ltd_schedule": {
                        "min_value": 16, "max_value": 64, "schedule_type": "fixed_linear",
                        "schedule_config": {"require_steps": 10, "seq_per_step": 8},
                    },
                },
            },
        },
    },
}  # fmt: skip
MIXED: Kwargs = {"stage": 1, "groups": 2, "optimizer": "mixed_lion"}
ROUND_ROBIN: Kwargs = {"stage": 2, "zero": {"round_robin_gradients": True}}

CASES: dict[str, Case] = {
    # A: flags and gates
    "A2": Case({"stage": 3}, arguments={"load_module_only": True}, disable="module-only", loud="weights mismatch",
               says=("load_module_only=True",)),
    "A8": caught("masters mismatch", "the first step would undo the load", saved=BF16_OPTIMIZER,
                 now={**BF16_OPTIMIZER, "zero": {"load_from_fp32_weights": False}}, undone=True),
    "A11 clipping": Case({"stage": 2, "config": {"gradient_clipping": 0.5}},
                         {"stage": 2, "config": {"gradient_clipping": 2.0}},
                         says=("gradient clipping: 2.0 was configured, 0.5 is in force",)),
    "A11 scaler": Case(FP16, {**FP16, "config": STATIC}, says=("loss scale", "was configured")),
    "A11 stage 3": Case({**FP16, "stage": 3, "config": STATIC}, {**FP16, "stage": 3}, says=("loss scale",)),
    "A11 stage 0": Case({"stage": 0, "precision": "fp16"}, {"stage": 0, "precision": "fp16", "config": STATIC},
                        says=("loss scale", "was configured")),
    # D: right bytes, wrong place
    "D1 stage 1": refused("another order", "third.weight, second.weight", "register the layers",
                          saved={"stage": 1, "model": TRIPLE}, now={"stage": 1, "model": f"{TRIPLE}, two of them swapped"},
                          undone=True),
    "D1 stage 3": refused("another order", "third.weight, second.weight", "register the layers",
                          saved={"stage": 3, "model": TRIPLE}, now={"stage": 3, "model": f"{TRIPLE}, two of them swapped"}),
    "D1 stage 0": refused("another order", "third.weight, second.weight", "register the layers",
                          saved={"stage": 0, "precision": "fp32", "model": TRIPLE},
                          now={"stage": 0, "precision": "fp32", "model": f"{TRIPLE}, two of them swapped"}),
    "D1 stage 0 in 16 bit": caught("masters mismatch", "moments mismatch", "register the layers", undone=True,
                                   saved={"stage": 0, "precision": "fp16", "model": TRIPLE},
                                   now={"stage": 0, "precision": "fp16", "model": f"{TRIPLE}, two of them swapped"}),
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
    "D7": refused("other places", saved={"stage": 2, "zero": {"parameter_alignment": True}}, now={"stage": 2},
                  saver="newest", role="stage0_loses_moments", upstream="RuntimeError",
                  twin=({"stage": 2}, {"stage": 2}, {})),
    # E: partial module loads
    "E1 half": Case({"stage": 2}, arguments={**LOOSE, **WEIGHTS}, harm=half_renamed,
                    says=("9 of 11 names met", "middle.1.weight")),
    "E1 half, with masters": caught("masters mismatch", "9 of 11 names met", "middle.1.weight", saved={"stage": 2},
                                    arguments=LOOSE, harm=half_renamed, undone=True),
    "E1 none": caught("the prefix 'inner.'", "no name of the checkpoint", saved={"stage": 0},
                      now={"stage": 0, "model": "wrapped"}, arguments=LOOSE),
    "E3 excluded": Case({"stage": 3, "model": {"frozen": True}}, arguments=LOOSE, save={"exclude_frozen_parameters": True},
                        says=("frozen: left out", "first.weight")),
    "E9": refused("other parameters", "in the file, not trained here", "first.weight", saved={"stage": 2},
                  now={"stage": 2, "model": {"frozen": True}}, upstream="KeyError"),
    "E9 without states": Case({"stage": 2}, {"stage": 2, "model": {"frozen": True}}, arguments=WEIGHTS, raises="KeyError",
                              says=("freeze it after the load",), upstream="KeyError"),
    "E4": caught("frozen absent", "first.weight", saved={"stage": 3, "model": {"frozen": True}},
                 harm=dropped("frozen_param_fragments", "frozen_param_shapes")),
    "E4 loose": caught("frozen absent", saved={"stage": 3, "model": {"frozen": True}}, arguments=LOOSE,
                       harm=dropped("frozen_param_fragments", "frozen_param_shapes")),
    # F: scheduler, counters, data, client state
    "F6 off at the save": refused("random_ltd", "the feature was off", saved={"stage": 2}, now=LTD, upstream="TypeError"),
    "F6 not in the file": Case(LTD, harm=dropped("random_ltd"), says=("random_ltd: left out",)),
    "F6 off now": Case(LTD, {"stage": 2}, says=("random_ltd", "no place for it")),
    "F9": caught("moments fresh", "no second", saved={**MIXED, "zero": {"elastic_checkpoint": True}}, twin=(MIXED, MIXED, {})),
    "F10": Case({"stage": 2}, harm=dropped("global_samples"), says=("no global_samples",)),
    "F1": Case({"stage": 2, "scheduler": "warmup"}, {"stage": 2}, says=("client_state['lr_scheduler']",),
               disable="client-scheduler", loud="this engine has no place for it"),
    **{
        f"F2 stage {stage}": Case({"stage": stage, "scheduler": "warmup"}, arguments=WEIGHTS, disable="first-rate",
                                  loud="learning rate of the restored schedule", says=("partial load",))
        for stage in (0, 2, 3)
    },
}  # fmt: skip
