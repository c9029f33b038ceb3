"""Which modules of a torch model are converted: names, patterns and the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nvfp.errors import ArgumentError, message
from nvfp.recipes import policy


@dataclass(frozen=True)
class Row:
    """One linear module of a torch model.

    Attributes:
        name: dotted name in the model; the model itself is ``""``.
        shape: of its weight, (N, K).
        recipe: the recipe's text, or None where it computes in high precision.
        reason: why it does, or ``""``.
    """

    name: str
    shape: tuple[int, int]
    recipe: str | None
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """What `nf.interop.torch.report` found; printing it gives a table.

    Attributes:
        rows: every linear module in the order of the model.
    """

    rows: tuple[Row, ...]

    @property
    def converted(self) -> tuple[str, ...]:
        """Names of the modules that a recipe quantizes."""
        return tuple(row.name for row in self.rows if row.recipe is not None)

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the modules in high precision."""
        return tuple(row.name for row in self.rows if row.recipe is None)

    def __str__(self) -> str:
        weights = [(row.shape[0] * row.shape[1], row.recipe is not None) for row in self.rows]
        total, narrow = sum(n for n, _ in weights), sum(n for n, quantized in weights if quantized)
        share = f"{narrow / total:.1%}" if total else "none"
        width = max((7, *(len(row.name) for row in self.rows)))
        lines = [
            f"{row.name or '(model)':<{width}}  {row.shape[0]:>6} x {row.shape[1]:<6}  {row.recipe or row.reason}"
            for row in self.rows
        ]
        return "\n".join((*lines, f"{len(self.converted)} of {len(self.rows)} linear layers, {share} of their weights"))


def matches(name: str, patterns: Iterable[str]) -> list[str]:
    """Return the patterns that a dotted name, or a module above it, matches."""
    return [p for p in patterns if policy.matches(name, p)]


def checked_patterns(keep: Any) -> tuple[str, ...]:
    """Return ``keep`` as a tuple of patterns.

    Raises:
        ArgumentError: one string (its letters would be patterns), or other things than strings.
    """
    patterns = None if isinstance(keep, str) or not isinstance(keep, Iterable) else tuple(keep)
    if patterns is None or not all(isinstance(p, str) for p in patterns):
        raise ArgumentError(message("convert_model", "keep=a list of names", repr(keep), "pass e.g. keep=['lm_head']"))
    return patterns


def check_used(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raise ArgumentError for a pattern that no linear module matches: a misspelt name would be quantized."""
    idle = [p for p in patterns if not any(matches(name, [p]) for name in names)]
    if idle:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise ArgumentError(message("convert_model", f"keep= out of {shown}", idle, "correct or leave out these"))
