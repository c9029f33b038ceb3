"""What `bisect` reports: `Finding`, one run, and `Bisection`, the table of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nvfp.errors import ArgumentError, message
from nvfp.inspect._json import as_json
from nvfp.inspect.figures_table import html_table

Tensor = tuple[str, str]  # qualified name of the GEMM, role
_COLUMNS = ("tensors", "loss", "difference", "gradient cosine")


@dataclass(frozen=True)
class Finding:
    """What one run with some tensors switched gave.

    Attributes:
        tensors: (module, role) of the tensors that were switched; several where the budget did not split them.
        loss: the loss of that run.
        loss_difference: loss minus that of the reference.
        gradient_cosine: cosine between the gradients of all parameters and the reference's; NaN where one is 0.
        gradient_error: norm of their difference by the norm of the reference's.

    Example:
        >>> Finding((("fc1", "dy"),), 1.0, 0.0, 0.99, 0.1).name
        'fc1 dy'
    """

    tensors: tuple[Tensor, ...]
    loss: float
    loss_difference: float
    gradient_cosine: float
    gradient_error: float

    @property
    def name(self) -> str:
        """The tensors in words."""
        first, last = (" ".join(t) for t in (self.tensors[0], self.tensors[-1]))
        return first if len(self.tensors) == 1 else f"{first} ... {last} ({len(self.tensors)} tensors)"

    def hurt(self, by: str) -> tuple[float, float]:
        """What findings are sorted by: larger is worse, a loss or gradient that is not finite is worst."""
        keys = tuple(math.inf if math.isnan(v) else v for v in (abs(self.loss_difference), self.gradient_error))
        return keys if by == "loss" else keys[::-1]  # type: ignore[return-value]


class Bisection(Sequence[Finding]):
    """What `nf.inspect.bisect` found: a sequence of `Finding`, the worst first, that prints as a table.

    Attributes:
        reference: the run against which the others are compared.
        quantized: the run with every tensor quantized.
        switch: ``"on"``: each finding quantizes its tensors alone; ``"off"``: all but them.
        runs: forward and backward passes taken.
        loss_dtype: of the loss. In 16 bits small differences vanish: compute it in float32.

    Example:
        >>> one = Finding((("fc1", "dy"),), 1.0, 0.0, 0.99, 0.1)
        >>> print(Bisection([one], reference=one, quantized=one, switch="on", runs=3))
        quantized alone  loss  difference  gradient cosine
        fc1 dy              1          +0         0.990000
        all                 1          +0         0.990000
        none                1          +0         0.990000
    """

    def __init__(
        self, found: Iterable[Finding], *, reference: Finding, quantized: Finding, switch: str, runs: int,
        loss_dtype: str = "float32",
    ) -> None:  # fmt: skip
        self._found = tuple(found)
        self.reference, self.quantized, self.switch, self.runs = reference, quantized, switch, runs
        self.loss_dtype = loss_dtype

    def __getitem__(self, index: Any) -> Any:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def sorted(self, by: Literal["loss", "gradient"] = "loss") -> Bisection:
        """Return the findings in another order.

        Args:
            by: ``"loss"``: by the size of the loss difference, then the gradient's error; ``"gradient"``: the other
                way round.

        Raises:
            ArgumentError: another word.
        """
        check_order(by)
        ordered = sorted(self._found, key=lambda f: f.hurt(by), reverse=True)
        return Bisection(
            ordered, reference=self.reference, quantized=self.quantized, switch=self.switch, runs=self.runs,
            loss_dtype=self.loss_dtype,
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Return ``{"switch", "runs", "reference", "quantized", "found"}``."""
        runs = {"reference": asdict(self.reference), "quantized": asdict(self.quantized)}
        return {"switch": self.switch, "runs": self.runs, **runs, "found": [asdict(f) for f in self]}

    def to_json(self, path: str | os.PathLike[str] | None = None, indent: int | None = 2) -> str:
        """Return `as_dict` as JSON, and write it to ``path`` if one is given; numbers that are not finite become null.

        Args:
            path: a file, which is replaced.
            indent: spaces per level; None for one line.
        """
        return as_json(self.as_dict(), path, indent)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        head = ("quantized alone" if self.switch == "on" else "not quantized", *_COLUMNS[1:])
        all_of, none = ("all", "none") if self.switch == "on" else ("none", "all")
        rows = [(f.name, f) for f in self] + [(all_of, self.quantized), (none, self.reference)]
        return head, [
            (name, f"{f.loss:.6g}", f"{f.loss_difference:+.3g}", f"{f.gradient_cosine:.6f}") for name, f in rows
        ]

    def __repr__(self) -> str:
        head, cells = self._table()
        rows = [head, *cells]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        if self.loss_dtype not in ("float32", "float64"):
            lines.append(f"the loss is {self.loss_dtype}: compute it in float32 to see smaller differences")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table(*self._table())


def check_order(by: object) -> None:
    """Raise unless ``by`` is an order of findings."""
    if by not in ("loss", "gradient"):
        raise ArgumentError(message("bisect", 'by="loss" or "gradient"', repr(by), "pick one"))
