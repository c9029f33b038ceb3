"""`TensorFigures`: what `record` saw of one tensor, and `Recording`, the table of them."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nvfp.inspect._json import as_json
from nvfp.inspect._recorded_picture import draw

_COLUMNS = (
    "module", "tensor", "copy", "dtype", "samples", "amax", "scale", "underflow", "overflow", "not finite", "SQNR dB",
)  # fmt: skip
_LEFT = 4  # columns that hold names


@dataclass(frozen=True)
class TensorFigures:
    """The figures of one copy of one tensor, of one sample or of several together.

    Attributes:
        module: qualified name of the GEMM, e.g. ``"layers.0.layernorm_mlp.fc1"``.
        tensor: ``"x"``, ``"w"``, ``"dy"``; ``"y"``, an output; ``"dx"``, where it leaves the layer quantized.
        copy: ``"row"``, ``"col"``, or ``"dense"`` for an output.
        dtype: name of the quantized dtype of the copy (of an output: of the array).
        step: the step of the sample; None in figures of several samples.
        samples: how many samples this is.
        elements: number of elements of all samples together.
        amax: largest magnitude; infinities count where the format saturates.
        scale_min: smallest decode factor, tensor scale included; NaN if a block is NaN.
        scale_max: largest decode factor; per-tensor formats have one, which is both.
        underflow: share of the elements that became 0 and were not; NaN, as overflow, signal and noise, of a tensor
            that came quantized.
        overflow: share of the elements that were clipped (`nf.quant_error` says when).
        nonfinite: number of elements where the input or its value is NaN or inf.
        signal: sum of x^2 over the others.
        noise: sum of (value - x)^2 over the others.

    Example:
        >>> figures = TensorFigures("fc1", "x", "row", "nvfp4", 0, 1, 4, 2.0, 0.3, 0.4, 0.25, 0.0, 0, 100.0, 1.0)
        >>> figures.sqnr_db, together([figures, figures]).samples
        (20.0, 2)
    """

    module: str
    tensor: str
    copy: str
    dtype: str
    step: int | None
    samples: int
    elements: int
    amax: float
    scale_min: float
    scale_max: float
    underflow: float
    overflow: float
    nonfinite: int
    signal: float
    noise: float

    @property
    def sqnr_db(self) -> float:
        """``10 log10(signal / noise)``; inf without an error, NaN where that is unknown or nothing is finite."""
        if self.copy == "dense" or (self.elements and self.nonfinite == self.elements):
            return math.nan
        if not self.noise:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    @property
    def compared(self) -> bool:
        """Whether there was a tensor that its quantized copy was compared with."""
        return self.copy != "dense" and not math.isnan(self.signal)

    def as_dict(self) -> dict[str, Any]:
        """Return every figure under its name, ``sqnr_db`` too."""
        return {**asdict(self), "sqnr_db": self.sqnr_db}


def together(samples: Sequence[TensorFigures]) -> TensorFigures:
    """Pool samples of one tensor: sums of squares and counts add up, extremes are those of all.

    Args:
        samples: at least one, all of the same copy.

    Returns:
        Their common figures, with ``step`` None.
    """
    n = sum(s.elements for s in samples)

    def share(name: str) -> float:
        return sum(getattr(s, name) * s.elements for s in samples) / n if n else 0.0

    return replace(
        samples[-1], step=None, samples=len(samples), elements=n, amax=_extreme(max, (s.amax for s in samples)),
        scale_min=_extreme(min, (s.scale_min for s in samples)),
        scale_max=_extreme(max, (s.scale_max for s in samples)), underflow=share("underflow"),
        overflow=share("overflow"), nonfinite=sum(s.nonfinite for s in samples), signal=sum(s.signal for s in samples),
        noise=sum(s.noise for s in samples),
    )  # fmt: skip


def _extreme(choose: Any, values: Iterable[float]) -> float:
    """The largest or smallest; NaN where there is one, wherever it stands."""
    found = list(values)
    return math.nan if any(math.isnan(v) for v in found) else float(choose(found))


class Recording(Sequence[TensorFigures]):
    """What `nf.inspect.record` saw: a sequence with the pooled figures of every tensor, that prints as a table.

    Attributes:
        samples: the figures of every sample, in the order of recording.
        steps: how many steps were run, recorded or not.
        dense: name of a GEMM -> how often it ran unquantized under a recipe (`nf.autocast`'s ``min_gemm``).

    Example:
        >>> figures = TensorFigures("fc1", "x", "row", "nvfp4", 0, 1, 4, 2.0, 0.3, 0.4, 0.25, 0.0, 0, 100.0, 1.0)
        >>> print(Recording([figures], steps=1, dense={}))
        module  tensor  copy  dtype  samples  amax       scale  underflow  overflow  not finite  SQNR dB
        fc1     x       row   nvfp4        1     2  0.3 to 0.4        25%        0%           0     20.0
    """

    def __init__(self, samples: Iterable[TensorFigures], *, steps: int, dense: dict[str, int]) -> None:
        self.samples, self.steps, self.dense = tuple(samples), steps, dict(dense)
        groups: dict[tuple[str, str, str], list[TensorFigures]] = {}
        for sample in self.samples:
            groups.setdefault((sample.module, sample.tensor, sample.copy), []).append(sample)
        self._pooled = tuple(together(group) for group in groups.values())

    def __getitem__(self, index: Any) -> Any:
        return self._pooled[index]

    def __len__(self) -> int:
        return len(self._pooled)

    def worst(self, count: int = 10) -> list[TensorFigures]:
        """Return the tensors with the lowest SQNR, those without a finite value first.

        Args:
            count: how many.
        """
        known = [f for f in self if f.compared]
        return sorted(known, key=lambda f: -math.inf if math.isnan(f.sqnr_db) else f.sqnr_db)[:count]

    def as_dict(self) -> dict[str, Any]:
        """Return ``{"steps", "dense", "tensors", "samples"}``; the last two are lists of `TensorFigures.as_dict`."""
        return {
            "steps": self.steps,
            "dense": self.dense,
            "tensors": [f.as_dict() for f in self],
            "samples": [f.as_dict() for f in self.samples],
        }

    def to_json(self, path: str | os.PathLike[str] | None = None, indent: int | None = 2) -> str:
        """Return `as_dict` as JSON, and write it to ``path`` if one is given; numbers that are not finite become null.

        Args:
            path: a file, which is replaced.
            indent: spaces per level; None for one line.
        """
        return as_json(self.as_dict(), path, indent)

    def plot(self, path: str | os.PathLike[str] | None = None, ax: Any = None, *, most: int = 40) -> Any:
        """Draw SQNR of each tensor, with its range over the samples, and beside it what under- and overflowed.

        Args:
            path: where to save the picture (``.png``, ``.pdf``, ``.svg``); without it the figure stays open.
            ax: a pair of Matplotlib axes, or one for the first panel only; by default a new figure.
            most: how many tensors are drawn, those with the lowest SQNR.

        Returns:
            The Matplotlib figure.

        Raises:
            MissingDependencyError: Matplotlib is not installed (extra ``plot``).
            ArgumentError: nothing was recorded, or an unusable ``ax`` or ``path``.
        """
        return draw(self.worst(most), self.samples, path, ax)

    def __repr__(self) -> str:
        rows = [_COLUMNS, *(_cells(f) for f in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = [
            "  ".join(c.ljust(w) if i < _LEFT else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        told = f"in the input's dtype: {', '.join(f'{k} ({n} times)' for k, n in self.dense.items())}"
        return "\n".join([*(line.rstrip() for line in lines), *([told] if self.dense else [])])

    def _repr_html_(self) -> str:
        return html_table(_COLUMNS, [_cells(f) for f in self])


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table of text cells.

    Example:
        >>> html_table(["a"], [["<1"]])
        '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;1</td></tr></tbody></table>'
    """
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _cells(f: TensorFigures) -> tuple[str, ...]:
    low, high = f"{f.scale_min:.3g}", f"{f.scale_max:.3g}"
    dense, unknown = f.copy == "dense", not f.compared
    return (
        f.module, f.tensor, f.copy, f.dtype, str(f.samples), f"{f.amax:.3g}",
        "-" if dense else low if low == high else f"{low} to {high}",
        "-" if unknown else f"{100 * f.underflow:.3g}%", "-" if unknown else f"{100 * f.overflow:.3g}%",
        str(f.nonfinite), "-" if unknown else f"{f.sqnr_db:.1f}",
    )  # fmt: skip
