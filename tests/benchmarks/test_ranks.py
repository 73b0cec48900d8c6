"""What talk between ranks costs: rank 0's merge <= 1 s at 4,096 simulated ranks, and linear."""

from __future__ import annotations

import json
import time
from typing import Any

from dspatch.verdict.ranks import MESSAGE_LIMIT, fitting
from dspatch.verdict.report import merge_messages
from dspatch.verdict.request import COMPONENTS
from dspatch.verdict.session import _compare_before


def _verdict(rank: int) -> dict[str, Any]:
    finding = {
        "component": "moments", "outcome": "fresh", "rank": rank, "file": f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        "names": [f"layers.{number}.weight" for number in range(5)], "count": 96, "expected": "exp_avg, as in the file",
        "found": f"zeros {rank % 7}", "do": "", "ranks": [],
    }  # fmt: skip
    message = {
        "outcomes": {name: ["fresh" if name == "moments" else "restored", ""] for name in COMPONENTS},
        "findings": [finding] * 16, "seconds": {"load": 1.0, "verdict": 0.1}, "bytes_compared": 10**9,
        "largest": {"exp_avg": 0.1}, "checks": 0, "host": f"node{rank // 8}",
    }  # fmt: skip
    return fitting(message, "findings")


def _before(rank: int) -> dict[str, Any]:
    return {
        "request": {"folder": "/runs/7b", "tag": "step_1000"}, "settings": {"mode": "strict"}, "refusal": None,
        "saved_at": [1000, 64000, 4096], "steps": [1000.0], "host": f"node{rank // 8}",
    }  # fmt: skip


def test_merge() -> None:
    for world in (1024, 4096):
        texts = [json.dumps(_verdict(rank)) for rank in range(world)]
        assert max(map(len, texts)) <= MESSAGE_LIMIT
        started = time.perf_counter()
        merged = merge_messages([json.loads(text) for text in texts])
        verdict = time.perf_counter() - started
        started = time.perf_counter()
        _compare_before([_before(rank) for rank in range(world)])
        before = time.perf_counter() - started
        print(
            f"\n{world} ranks: verdicts merged in {verdict:.3f} s (target 1 at 4096), requests in {before:.3f} s;"
            f" answer {len(json.dumps(merged))} bytes"
        )
