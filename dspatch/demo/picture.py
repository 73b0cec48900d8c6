"""The loss curves around each resume as one picture, for a reader who has not seen the README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspatch.demo.parts import SAVED, SHOWN, Shown

_BEFORE = 40
_GREY, _RED, _BLUE = "#8a8f98", "#c8372d", "#1f6fb4"


def draw(parts: Sequence[Shown], path: Path) -> None:
    """Write the picture.

    Args:
        parts: what was shown, one panel each.
        path: a ``.png`` file.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(parts), figsize=(6.2 * len(parts), 5.6), squeeze=False)
    for axis, shown in zip(axes[0], parts, strict=True):
        _panel(axis, shown)
    figure.suptitle("Resuming from a checkpoint: DeepSpeed reported success each time", fontsize=15, weight="bold")
    figure.tight_layout(rect=(0, 0.02, 1, 0.96))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(axis: Any, shown: Shown) -> None:
    steps = range(SAVED - _BEFORE, SAVED + SHOWN + 1)
    axis.plot(steps, shown.reference[SAVED - _BEFORE - 1 :], color=_GREY, linewidth=5, alpha=0.45, solid_capstyle="round",
              label="never interrupted")  # fmt: skip
    _curve(axis, shown.without.losses, "resumed without dspatch", color=_RED, linewidth=2)
    for label, run in shown.runs.items():
        if not any(run.errors):
            _curve(
                axis, run.losses, f"resumed with dspatch ({label})", color=_BLUE, linewidth=1.8, linestyle=(0, (4, 2))
            )
    _stops(axis, shown)
    axis.axvline(SAVED, color="black", linewidth=0.8, linestyle=":")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.set_ylim(low / 1.3, high * (high / low) ** 0.45)  # room for the legend above the curves
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if high / low < 30 and f"{value:e}"[0] in "25" else "")
    axis.annotate(" resume", (SAVED, low / 1.2), fontsize=9)
    axis.set_xlabel("training step")
    axis.set_ylabel("loss of a fixed batch (log scale)")
    axis.set_title(f"({shown.part.key}) {shown.part.title}\n{shown.part.origin}", fontsize=10.5)
    axis.grid(alpha=0.25)
    axis.legend(loc="upper right", fontsize=9)


def _curve(axis: Any, losses: Sequence[float], label: str, **style: Any) -> None:
    axis.plot(range(SAVED, SAVED + len(losses)), losses, label=label, **style)


def _stops(axis: Any, shown: Shown) -> None:
    """Mark where dspatch stops the run instead of letting it go on."""
    stopped = {label: run for label, run in shown.runs.items() if any(run.errors)}
    for label, run in stopped.items():
        error = next(text for text in run.errors if text)
        names = f"stopped by dspatch ({label}): {error.split(':', 1)[0]} on all {len(run.errors)} ranks"
        axis.plot([SAVED], [shown.reference[SAVED - 1]], marker="X", markersize=12, color=_BLUE, linestyle="none",
                  label=names, zorder=5)  # fmt: skip
