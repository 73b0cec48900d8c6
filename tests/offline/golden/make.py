"""Make one of the archives in this folder: small checkpoints of a release that is too old for `tests/support/trees.py`.

    PYTHONPATH=FOLDER_OF_PYDANTIC_1 python tests/offline/golden/make.py SOURCE_TREE OUT.tar.xz

SOURCE_TREE is a checkout of that release (`git archive`). Such releases do not import beside a torch of today, so what they
miss is put in its place here; none of it has a part in what a checkpoint holds. Two real ranks train and save.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path
from typing import Any

#: name -> ZeRO stage, precision, with experts.
BUILDS = {
    "z0-fp32": (0, "fp32", False), "z0-fp16": (0, "fp16", False), "z0-bf16": (0, "bf16", False), "z1-bf16": (1, "bf16", False),
    "z2-fp16": (2, "fp16", False), "z3-fp16": (3, "fp16", False), "z3-bf16": (3, "bf16", False), "experts": (2, "fp16", True),
}  # fmt: skip


class _Silent:
    """A stream, an event, a vendor's library: everything can be called and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _fill_gaps(source: Path) -> None:
    """Put in place what the release imports and a torch, numpy or CPU of today does not have."""
    import math

    import numpy
    import torch
    from torch.distributed.elastic.agent.server import api

    numpy.BUFSIZE = 8192  # type: ignore[attr-defined]
    six = types.ModuleType("torch._six")
    six.inf, six.string_classes = math.inf, (str, bytes)  # type: ignore[attr-defined]
    sys.modules["torch._six"] = torch._six = six  # type: ignore[attr-defined]
    for name in ("oneccl_bindings_for_pytorch", "intel_extension_for_pytorch"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["intel_extension_for_pytorch"].xpu = _Silent()  # type: ignore[attr-defined]
    api.log, api._get_socket_with_port = logging.getLogger("torch"), None  # type: ignore[attr-defined]
    built = types.ModuleType("deepspeed.git_version_info_installed")
    built.version = (source / "version.txt").read_text(encoding="utf-8").strip()  # type: ignore[attr-defined]
    built.git_hash = built.git_branch = "unknown"  # type: ignore[attr-defined]
    from collections import defaultdict

    built.installed_ops = built.compatible_ops = defaultdict(bool)  # type: ignore[attr-defined]
    built.torch_info = {"version": "0.0", "cuda_version": "0.0", "hip_version": "0.0", "bf16_support": False,
                        "nccl_version": "0.0"}  # type: ignore[attr-defined]  # fmt: skip
    built.accelerator_name = ""  # type: ignore[attr-defined]
    sys.modules[built.__name__] = built


def _settle_on_cpu() -> None:
    from deepspeed.accelerator import get_accelerator, set_accelerator

    if get_accelerator()._name != "cpu":
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

        set_accelerator(CPU_Accelerator())
    kind = type(get_accelerator())
    kind.is_fp16_supported = kind.is_bf16_supported = lambda self: True
    kind.Event = kind.Stream = kind.current_stream = kind.default_stream = lambda self, *args, **kwargs: _Silent()
    kind.stream = lambda self, stream: contextlib.nullcontext()
    kind.memory_stats = lambda self, *args: {"num_alloc_retries": 0}
    with contextlib.suppress(ImportError):
        from deepspeed.comm import ccl

        ccl.build_ccl_op = lambda: None
    from deepspeed.runtime import engine

    engine.split_half_float_double_sparse = lambda tensors: [(tensors[0].type(), tensors)] if tensors else []


def save(source: Path, folder: str, stage: int, precision: str, experts: bool) -> None:
    """One rank: train three steps and save."""
    _fill_gaps(source)
    import deepspeed
    import torch

    _settle_on_cpu()
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = torch.nn.Linear(11, 17), torch.nn.LayerNorm(17), torch.nn.Linear(17, 5)
            self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
            if experts:
                from deepspeed.moe.layer import MoE

                self.moe = MoE(17, torch.nn.Linear(17, 17), num_experts=4, ep_size=2, k=1, min_capacity=0)

        def forward(self, inputs: Any, targets: Any) -> Any:
            hidden = self.norm(self.first(inputs))
            if experts:
                hidden = self.moe(hidden)[0]
            return (self.last(hidden).float() - targets).square().mean()

    net = Net()
    params: Any = [one for one in net.parameters() if one.requires_grad]
    if experts:
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

        params = split_params_into_different_moe_groups_for_optimizer({"params": params, "name": "all"})
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10**6, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": stage},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 10}},
    }  # fmt: skip
    if precision != "fp32":
        config[precision] = {"enabled": True, **({"initial_scale_power": 8} if precision == "fp16" else {})}
    made, *_ = deepspeed.initialize(
        model=net, optimizer=torch.optim.AdamW(params, lr=1e-3), config=config, dist_init_required=False
    )
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    for _ in range(3):
        made.backward(made(torch.randn(4, 11).to(dtype), torch.randn(4, 5)))
        with torch.no_grad():  # a torch of today minds that parameters are views
            made.step()
    made.save_checkpoint(folder, client_state={"epoch": 1})


def main() -> None:
    """Save every build with two ranks, and pack what works."""
    source, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        for name, build in BUILDS.items():
            port = str(random.randrange(20_000, 40_000))
            path = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
            common = {**os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu", "WORLD_SIZE": "2", "LOCAL_SIZE": "2",
                      "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}  # fmt: skip
            command = [sys.executable, __file__, "rank", str(source), f"{scratch}/{name}", *map(str, build)]
            ranks = [subprocess.Popen(command, env={**common, "RANK": rank, "LOCAL_RANK": rank}, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True) for rank in "01"]  # fmt: skip
            errors = [one.communicate(timeout=300)[1] for one in ranks]
            if any(one.returncode for one in ranks):
                print(f"{name} does not run: {errors[0].strip().splitlines()[-1]}")
                for path in sorted(Path(scratch, name).rglob("*"), reverse=True):
                    path.rmdir() if path.is_dir() else path.unlink()
        with tarfile.open(target, "w:xz") as archive:
            for path in sorted(Path(scratch).rglob("*")):
                if path.suffix != ".py":
                    archive.add(path, str(path.relative_to(scratch)), recursive=False)
    print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        save(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5], sys.argv[6] == "True")
    else:
        main()
