"""`compare_formats`: one tensor in many quantized dtypes, as a table and a picture."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence
from typing import Any, overload

from nvfp.arrays.functions.quantization import quantize
from nvfp.dtypes.codec import Overflow, Rounding
from nvfp.dtypes.formats import FORMATS, QuantDType
from nvfp.errors import ArgumentError, message
from nvfp.inspect._figures import Figures
from nvfp.inspect._json import as_json
from nvfp.inspect._picture import draw
from nvfp.inspect.error_report import ErrorReport, as_quantized, as_source, figures_of, host, report_of

_COLUMNS = (
    "dtype", "bits/value", "SQNR dB", "max error", "max rel.", "mean error", "saturated", "flushed", "not finite",
)  # fmt: skip


class FormatComparison(Sequence[ErrorReport]):
    """The reports of one tensor in several quantized dtypes: a sequence that prints as a table.

    Made by `compare_formats`. Notebooks show it as a table too.

    Example:
        >>> import nvfp as nf
        >>> found = nf.compare_formats(nf.ones((2, 64), device="cpu"), ["mxfp4", "nvfp4"])
        >>> len(found), found[1].dtype, found[0].sqnr_db
        (2, nvfp.nvfp4, inf)
    """

    def __init__(self, reports: Sequence[ErrorReport], found: Sequence[Figures]) -> None:
        self._reports, self._figures = tuple(reports), tuple(found)

    @overload
    def __getitem__(self, index: int) -> ErrorReport: ...

    @overload
    def __getitem__(self, index: slice) -> FormatComparison: ...

    def __getitem__(self, index: int | slice) -> ErrorReport | FormatComparison:
        if isinstance(index, slice):
            return FormatComparison(self._reports[index], self._figures[index])
        return self._reports[index]

    def __len__(self) -> int:
        return len(self._reports)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return `ErrorReport.as_dict` of each dtype, e.g. for a data frame."""
        return [report.as_dict() for report in self]

    def to_json(self, indent: int | None = 2) -> str:
        """Return the reports as a JSON list of objects; numbers that are not finite become null.

        Args:
            indent: spaces per level; None for one line.
        """
        return as_json(self.as_dicts(), None, indent)

    def plot(self, path: str | os.PathLike[str] | None = None, ax: Any = None) -> Any:
        """Draw SQNR against bits per value, and the relative error in each binade of ``|x|`` over their histogram.

        Names tell how many values became NaN or inf that were not; dtypes without a finite value have no point.

        Args:
            path: where to save the picture, in a folder that exists (the ending says how: ``.png``, ``.pdf``,
                ``.svg``); without it the figure stays open for ``pyplot.show()`` and notebooks.
            ax: Matplotlib axes to draw into: one for the first panel only, or a pair; by default a new figure.

        Returns:
            The Matplotlib figure.

        Raises:
            MissingDependencyError: Matplotlib is not installed (extra ``plot``).
            ArgumentError: an ``ax`` that is neither; a ``path`` that is a folder or whose ending Matplotlib does not
                know (or that has none).
            DTypeError: a ``path`` that is neither text nor a path.
            FileNotFoundError: its folder does not exist.
        """
        return draw(self._reports, self._figures, path, ax)

    def __repr__(self) -> str:
        rows = [_COLUMNS, *(_cells(report) for report in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = ("  ".join(_aligned(row, widths)).rstrip() for row in rows)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in _COLUMNS)
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(report)) for report in self)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def compare_formats(
    x: Any,
    dtypes: Iterable[Any] | None = None,
    *,
    axis: int = -1,
    rounding: Rounding = "even",
    overflow: Overflow = "saturate",
    convention: str | None = None,
    rng: Any = None,
) -> FormatComparison:
    """Quantize ``x`` to each of several dtypes and report the errors.

    Args:
        x: floating array [..., N], as in `nf.quant_error`.
        dtypes: quantized dtypes, your own too, or their names; all of nvfp's unless given.
        axis: where blocks lie.
        rounding: as in `nf.quantize`.
        overflow: as in `nf.quantize`.
        convention: as in `nf.quantize`; every dtype must be known to that stack.
        rng: as in `nf.quantize`; each dtype takes a draw.

    Returns:
        A `FormatComparison`: a sequence of `ErrorReport` (`nf.quant_error` gives the formulas), one per dtype in their
        order. It prints as a table; ``.plot("formats.png")`` draws it, ``.as_dicts()`` and ``.to_json()`` hand it on.

    Raises:
        DTypeError: a dtype that is not quantized, or ``x`` is not floating.
        ArgumentError: no dtype at all.

    Numerics:
        As `nf.quant_error`. Each dtype quantizes the whole tensor, one after the other.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([[0.5, -1.25, 3.0, 0.01, 100.0]], device="cpu")
        >>> nf.compare_formats(x, ["fp8_e4m3", "mxfp8", nf.nvfp4])
        dtype       bits/value  SQNR dB  max error  max rel.  mean error  saturated  flushed  not finite
        fp8_e4m3          14.4    59.94     0.0982    0.0409     -0.0148         0%       0%           0
        mxfp8_e4m3         9.6    27.96          4      0.04        -0.8         0%       0%           0
        nvfp4             12.8    29.67          3         0      -0.452         0%      80%           0
    """
    named = [dtypes] if isinstance(dtypes, str | QuantDType) else FORMATS.values() if dtypes is None else dtypes
    rows = [as_quantized("compare_formats", dtype) for dtype in named]
    if not rows:
        raise ArgumentError(message("compare_formats", "at least one dtype", "none", "leave dtypes= out for all"))
    source = as_source("compare_formats", x)
    inputs = host(source)
    reports, found = [], []
    for row in rows:
        q = quantize(source, row, axis=axis, rounding=rounding, overflow=overflow, convention=convention, rng=rng)
        found.append(figures_of(inputs, q))
        reports.append(report_of(q, found[-1]))
    return FormatComparison(reports, found)


def _cells(report: ErrorReport) -> tuple[str, ...]:
    return (
        str(report.dtype),
        f"{report.bits_per_value:.4g}",
        f"{report.sqnr_db:.2f}",
        f"{report.max_abs_error:.3g}",
        "-" if report.max_rel_error is None else f"{report.max_rel_error:.3g}",
        f"{report.mean_error:.3g}",
        f"{100 * report.saturated:.3g}%",
        f"{100 * report.flushed:.3g}%",
        str(report.nonfinite),
    )


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Names to the left, numbers to the right."""
    return [cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]
