"""Masters that follow weights which were replaced behind the engine's back."""

from __future__ import annotations

from typing import Any

from dspatch.errors import DspatchError, explain


def refresh_masters(engine: Any) -> None:
    """Set the fp32 masters from the current 16-bit weights, so that the next step does not undo a change of weights.

    For use after ``engine.module.load_state_dict(...)``. The fp32 bits of the former masters are lost.

    Raises:
        DspatchError: the engine's optimizer keeps no masters that could be refreshed.
    """
    # ZeRO-3 has the function that ZeRO-1/2's `refresh_fp32_params` calls, under its own name only.
    names = ("refresh_fp32_params", "_restore_from_bit16_weights")
    refresh = next((found for name in names if (found := getattr(engine.optimizer, name, None)) is not None), None)
    if refresh is None:
        raise DspatchError(
            explain(
                "this engine has no masters to refresh",
                expected="a ZeRO, BF16 or FP16 optimizer",
                found=type(engine.optimizer).__name__,
            )
        )
    refresh()


def stale_masters(engine: Any) -> list[str]:
    """Names of the parameters whose weights are not the cast of their masters, on this rank: the next step changes them."""
    from dspatch import live
    from dspatch.verdict import pairs

    found = [one for one in live.read(engine).pairs if one.component == "masters"]
    return list(dict.fromkeys(name for names in pairs.differing_in(found, 1) for name in names))
