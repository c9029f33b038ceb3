"""One measured line of a benchmark, as text and as cells of a table."""

from __future__ import annotations

from dataclasses import dataclass

from _recorded import Recorded

HEADINGS = ("case", "time", "rate", "of the roof", "torch, same run", "recorded", "limits, same run")


@dataclass(frozen=True)
class Limit:
    """A figure of a row that must be reached on the CPU.

    Attributes:
        what: ``"float32 in"`` or ``"float32 out"`` (bytes per second of values), or the peer that must take longer.
        got: the rate, or the peer's time over ours.
        least: what it must be.
    """

    what: str
    got: float
    least: float

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.got >= self.least

    def __str__(self) -> str:
        rate = self.what.startswith("float32 ")
        got, least = (rate_text(v, "B") if rate else f"{v:.3g}x" for v in (self.got, self.least))
        return f"{self.what} {got} (at least {least}: {'met' if self.met else 'MISSED'})"


@dataclass(frozen=True)
class Row:
    """One measured line.

    Attributes:
        name: what ran.
        seconds: median time of a call (of the host's part of it, for small calls).
        low: 10 % point.
        high: 90 % point.
        moved: bytes that must move at least, 0 for a product or a small call.
        flops: of a product, else 0.
        roof: bytes or FLOP per second that the device reaches, or None where that is not known.
        limit: seconds that a small call may take, or None.
        torch: seconds of torch in this run, or None.
        recorded: another peer's recorded time, or None.
        limits: what it must reach on the CPU.
    """

    name: str
    seconds: float
    low: float
    high: float
    moved: float = 0
    flops: float = 0
    roof: float | None = None
    limit: float | None = None
    torch: float | None = None
    recorded: Recorded | None = None
    limits: tuple[Limit, ...] = ()

    def cells(self) -> tuple[str, ...]:
        """The columns of `HEADINGS`; ``x 0.80`` after a peer's time says that we take 0.80 of it."""
        torch = "" if self.torch is None else self._versus("", self.torch)
        known = "" if self.recorded is None else self._versus(f"{self.recorded.peer} ", self.recorded.seconds)
        limits = "; ".join(map(str, self.limits))
        work = self.flops or self.moved
        if not work:
            limit = "" if self.limit is None else f" (limit {self.limit * 1e6:.0f})"
            return self.name, f"{self.seconds * 1e6:.1f} us{limit}", "a small call", "", torch, known, limits
        rate = work / self.seconds
        per_second = rate_text(rate, "FLOP" if self.flops else "B")
        share = f"{100 * rate / self.roof:.0f} %" if self.roof else ""
        return self.name, _milliseconds(self.seconds), per_second, share, torch, known, limits

    def _versus(self, peer: str, seconds: float) -> str:
        return f"{peer}{_milliseconds(seconds)}, x {self.seconds / seconds:.2f}"

    def __str__(self) -> str:
        name, time, rate, share, torch, known, limits = self.cells()
        peers = "; ".join(text for text in (torch and f"torch {torch}", known, limits) if text)
        return f"{name:<50} {time:>13} {rate:>13} {share:>6}  {peers}".rstrip()


def limits_text(rows: list[Row]) -> str:
    """Return how many limits the rows keep, and which they miss; nothing without limits."""
    limits = [(row.name, limit) for row in rows for limit in row.limits]
    missed = [f"\n  {name}: {limit}" for name, limit in limits if not limit.met]
    kept = len(limits) - len(missed)
    return f"limits: {kept} met, {len(missed)} missed{''.join(missed)}" if limits else ""


def rate_text(rate: float, unit: str) -> str:
    """Return e.g. ``"4250 GB/s"`` or ``"1513 TFLOP/s"`` (below one TFLOP/s ``"21.5 GFLOP/s"``)."""
    tera = unit == "FLOP" and rate >= 1e12
    value = rate / (1e12 if tera else 1e9)
    digits = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return f"{digits} {'T' if tera else 'G'}{unit}/s"


def roofs_text(roofs: dict[str, float]) -> str:
    """Return the roofs in words."""
    return ", ".join(f"{name} {rate_text(rate, 'B' if name == 'copy' else 'FLOP')}" for name, rate in roofs.items())


def _milliseconds(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.4f} ms" if ms < 10 else f"{ms:.2f} ms"
