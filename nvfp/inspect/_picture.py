"""The picture of a `FormatComparison`, with Matplotlib."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.inspect._figures import LOWEST, Figures
from nvfp.optional import need

if TYPE_CHECKING:
    from nvfp.inspect.error_report import ErrorReport

# One marker per width of a code, so that prints in grey can be read as well.
_MARKERS = {4: "o", 6: "^", 8: "s"}
_SHOWN = 1e-4  # binades that hold a smaller share of the elements are not drawn
_COLUMN = 12  # names per column of the legend
_GAP = 0.055  # between labels of 9 points, as a share of the panel's height


def draw(reports: Sequence[ErrorReport], found: Sequence[Figures], path: str | os.PathLike[str] | None, ax: Any) -> Any:
    """Draw both panels and return the figure; arguments as in `FormatComparison.plot`."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    if path is not None:
        check_path(path)
    panels, made = _panels(pyplot, ax, columns=-(-len(reports) // _COLUMN))
    colors = _colors(pyplot, len(reports))
    _tradeoff(panels[0], reports, colors)
    if len(panels) > 1:
        _binades(panels[1], reports, found, colors)
    figure = panels[0].figure
    if path is not None:
        figure.savefig(path, dpi=150)
        if made:
            pyplot.close(figure)
    return figure


def check_path(path: Any) -> None:
    """Refuse, before anything is drawn, a path to which Matplotlib would write nothing, or under another name."""
    if not isinstance(path, str | os.PathLike):
        raise DTypeError(message("plot", "a path as str or os.PathLike", type(path).__name__, "pass where to save"))
    file = Path(path)
    if file.is_dir():
        raise ArgumentError(message("plot", "a file to save to", f"the folder {file}", "add a name, as formats.png"))
    known = need("matplotlib.backend_bases", extra="plot").FigureCanvasBase.get_supported_filetypes()
    if file.suffix[1:].lower() not in known:
        expected = f"a path that ends in one of {sorted(known)}"
        raise ArgumentError(message("plot", expected, file.name, "give it the ending of a picture, as .png"))
    if not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder, make it first", str(file.parent))


def _colors(pyplot: Any, count: int) -> list[Any]:
    """One color per dtype, no two the same."""
    if count <= 20:
        return [pyplot.get_cmap("tab10" if count <= 10 else "tab20")(i) for i in range(count)]
    return list(pyplot.get_cmap("turbo")(np.linspace(0.03, 0.97, count)))


def _told(report: ErrorReport) -> str:
    """The name of a dtype, with what its figures leave out: values that are not finite where the inputs are."""
    lost = report.nonfinite - report.nonfinite_input
    if math.isnan(report.sqnr_db):
        return f"{report.dtype} (none finite)"
    return f"{report.dtype} ({lost} not finite)" if lost > 0 else str(report.dtype)


def _panels(pyplot: Any, ax: Any, columns: int) -> tuple[list[Any], bool]:
    if ax is None:
        size = (9 + 3 * columns, 4.3)
        _, axes = pyplot.subplots(1, 2, figsize=size, layout="constrained", width_ratios=(1, 1.1))
        return list(axes), True
    panels = [ax] if hasattr(ax, "plot") else list(np.ravel(ax))
    if not 1 <= len(panels) <= 2 or not all(hasattr(panel, "plot") for panel in panels):
        expected = "one Matplotlib axes, or a pair, for ax"
        raise ArgumentError(message("plot", expected, repr(ax), "pass pyplot.subplots(1, 2)[1]"))
    return panels, False


def _tradeoff(panel: Any, reports: Sequence[ErrorReport], colors: Sequence[Any]) -> None:
    """SQNR against bits per value; dtypes without an error stand at the top edge, those without a value nowhere."""
    panel.set(xlabel="bits per value, scales included", ylabel="SQNR, dB", title="accuracy against size")
    panel.grid(alpha=0.25)
    shown = [(r, c) for r, c in zip(reports, colors, strict=True) if not math.isnan(r.sqnr_db)]
    if not shown:
        return
    reports, colors = [r for r, _ in shown], [c for _, c in shown]
    bits = np.array([r.bits_per_value for r in reports])
    sqnr = np.array([r.sqnr_db for r in reports])
    finite = sqnr[np.isfinite(sqnr)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    margin = max(high - low, 1.0) * 0.12
    heights = np.clip(np.nan_to_num(sqnr, posinf=high + margin, neginf=low - margin), low - margin, None)
    for report, b, height, color in zip(reports, bits, heights, colors, strict=True):
        panel.plot(b, height, _MARKERS.get(report.bits, "D"), color=color, markersize=8)
    width = max(float(np.ptp(bits)), 1.0)
    room = (0.15 if len(reports) <= _COLUMN else 1.1) * width
    panel.set_xlim(bits.min() - room, bits.max() + room)
    panel.set_ylim(heights.min() - margin, heights.max() + margin)
    _labels(panel, reports, bits, heights, width)


def _labels(panel: Any, reports: Sequence[ErrorReport], bits: Any, heights: Any, width: float) -> None:
    """Names beside the points, toward the middle (many: away from it), moved apart where they would overlap."""
    low, high = panel.get_ylim()
    middle = (bits.min() + bits.max()) / 2
    for left in (True, False):
        side = [i for i in np.argsort(heights, kind="stable") if (bits[i] <= middle) == left]
        if not side:
            continue
        gap = (high - low) * min(_GAP, 1 / len(side))
        places = _apart(heights[side], gap, low + gap / 2, high - gap / 2)
        size = (9 if len(reports) <= _COLUMN else 7.5) * gap / (_GAP * (high - low))
        after = left == (len(reports) <= _COLUMN)  # many names on either side would meet in the middle
        edge = bits[side].max() + 0.12 * width if after else bits[side].min() - 0.12 * width
        for i, place in zip(side, places, strict=True):
            panel.annotate(
                _told(reports[i]), (bits[i], heights[i]), (edge, place), va="center", fontsize=size,
                ha="left" if after else "right", arrowprops={"arrowstyle": "-", "color": "0.7", "linewidth": 0.7},
            )  # fmt: skip


def _apart(places: Any, gap: float, low: float, high: float) -> list[float]:
    """Ascending places at least ``gap`` apart and within the bounds, near where they were."""
    moved = [float(p) for p in places]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    shift = sum(m - float(p) for m, p in zip(moved, places, strict=True)) / max(len(moved), 1)
    moved = [min(m - shift, high - gap * (len(moved) - 1 - i)) for i, m in enumerate(moved)]
    return [max(m, low + gap * i) for i, m in enumerate(moved)]


def _binades(panel: Any, reports: Sequence[ErrorReport], found: Sequence[Figures], colors: Sequence[Any]) -> None:
    """Root mean square error of the elements of a binade relative to their own, over how many there are."""
    counts = found[0].counts[1:]
    shown = np.flatnonzero(counts > _SHOWN * max(counts.sum(), 1))
    if shown.size:
        shown = np.arange(shown[0], shown[-1] + 1)
    exponents = shown + LOWEST - 1  # of the binade 2**e <= |x| < 2**(e + 1)
    crowd = panel.twinx()
    crowd.bar(exponents + 0.5, counts[shown] / max(counts.sum(), 1), width=1.0, color="0.88", edgecolor="white")
    crowd.set_ylabel("share of the elements (bars)", color="0.45")
    crowd.tick_params(axis="y", colors="0.45")
    crowd.set_zorder(0)
    panel.set_zorder(1)
    panel.patch.set_visible(False)
    for report, figures, color in zip(reports, found, colors, strict=True):
        signal, noise = figures.signal[1:][shown], figures.noise[1:][shown]
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(noise > 0, np.sqrt(noise / signal), np.nan)
        panel.plot(
            exponents + 0.5, error, "-", marker=_MARKERS.get(report.bits, "D"), color=color, markersize=4,
            linewidth=1.4, label=_told(report),
        )  # fmt: skip
    panel.set_yscale("log")
    panel.set(xlabel="log2 |x|", ylabel="relative error, root mean square", title="error by magnitude")
    panel.grid(alpha=0.25)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(
        fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.14, 1.02), ncols=-(-len(reports) // _COLUMN)
    )  # beside both scales
