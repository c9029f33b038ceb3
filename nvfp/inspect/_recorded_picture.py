"""The picture of a `Recording`, with Matplotlib."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nvfp.errors import ArgumentError, message
from nvfp.inspect._picture import check_path
from nvfp.optional import need

if TYPE_CHECKING:
    from nvfp.inspect.figures_table import TensorFigures

# Color and marker of a tensor's role, so that prints in grey can be read as well.
_ROLES = {"x": ("C0", "o"), "w": ("C2", "s"), "dy": ("C3", "^"), "y": ("C4", "D"), "dx": ("C5", "v")}
_LEAST = 1e-4  # percent: the left end of the logarithmic axis


def draw(
    shown: Sequence[TensorFigures],
    samples: Sequence[TensorFigures],
    path: str | os.PathLike[str] | None,
    ax: Any,
) -> Any:
    """Draw both panels and return the figure; arguments as in `Recording.plot`."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    if path is not None:
        check_path(path)
    if not shown:
        raise ArgumentError(message("plot", "a recording with quantized tensors", "an empty one", "record a step"))
    if ax is None:
        size = (11, 1.6 + 0.24 * len(shown))
        panels = list(pyplot.subplots(1, 2, figsize=size, sharey=True, layout="constrained")[1])
    else:
        panels = [ax] if hasattr(ax, "plot") else list(np.ravel(ax))
    if not 1 <= len(panels) <= 2 or not all(hasattr(panel, "plot") for panel in panels):
        raise ArgumentError(
            message("plot", "one Matplotlib axes, or a pair", repr(ax), "pass pyplot.subplots(1, 2)[1]")
        )
    _sqnr(panels[0], shown, samples)
    if len(panels) > 1:
        _lost(panels[1], shown)
    figure = panels[0].figure
    if path is not None:
        figure.savefig(path, dpi=150)
        if ax is None:
            pyplot.close(figure)
    return figure


def _sqnr(panel: Any, shown: Sequence[TensorFigures], samples: Sequence[TensorFigures]) -> None:
    """A point per tensor, the lowest on top, over the range of its samples."""
    for place, figures in enumerate(shown):
        color, marker = _ROLES[figures.tensor]
        mine = [s.sqnr_db for s in samples if _key(s) == _key(figures) and math.isfinite(s.sqnr_db)]
        if mine:
            panel.plot([min(mine), max(mine)], [place, place], "-", color=color, alpha=0.4, linewidth=3)
        if math.isfinite(figures.sqnr_db):
            panel.plot(figures.sqnr_db, place, marker, color=color)
    panel.set_yticks(range(len(shown)), [_name(f) for f in shown], fontsize=8)
    panel.set_ylim(len(shown) - 0.5, -0.5)
    panel.set(xlabel="SQNR, dB", title="signal to quantization noise")
    panel.grid(alpha=0.25)


def _name(f: TensorFigures) -> str:
    known = "" if math.isfinite(f.sqnr_db) else " (exact)" if f.sqnr_db > 0 else " (none finite)"
    return f"{f.module} {f.tensor} {f.copy} {f.dtype}{known}"


def _lost(panel: Any, shown: Sequence[TensorFigures]) -> None:
    """Percent of the elements that became 0, and that were clipped."""
    places = np.arange(len(shown))
    for shift, name, color in ((-0.2, "underflow", "0.6"), (0.2, "overflow", "C1")):
        percent = [100 * getattr(f, name) for f in shown]
        panel.barh(places + shift, percent, height=0.4, color=color, label=name)
    panel.set_xlim(_LEAST, 100)  # first: a logarithmic axis warns where every bar is 0
    panel.set_xscale("log")
    panel.set(xlabel="% of the elements", title="became 0, or were clipped")
    panel.grid(alpha=0.25, axis="x")
    panel.legend(fontsize=8, frameon=False)


def _key(f: TensorFigures) -> tuple[str, str, str]:
    return f.module, f.tensor, f.copy
