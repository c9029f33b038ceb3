"""What the example leaves behind: metrics.json, loss.png and the table."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import nvfp as nf


@dataclass
class Result:
    """What one recipe's run has given so far."""

    name: str
    parameters: int
    losses: list[tuple[int, float]] = field(default_factory=list)
    val_loss: float = float("nan")
    tokens: int = 0  # predicted bytes that `seconds` counts
    seconds: float = 0.0
    weight_bytes: int = 0
    peak_bytes: int | None = None
    peak_source: str = "not told by this system"

    @property
    def rate(self) -> float:
        """Predicted bytes per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


def write_metrics(results: list[Result], sha256: str, options: dict[str, Any], device: Any, out: Path) -> None:
    """Write metrics.json."""
    metrics = {
        "device": str(device),
        "corpus_sha256": sha256,
        "options": options,
        "recipes": {
            r.name: {
                "val_loss": r.val_loss,
                "tokens_per_s": r.rate,
                "weight_bytes": r.weight_bytes,
                "peak_memory_bytes": r.peak_bytes,
                "peak_memory_source": r.peak_source,
            }
            for r in results
        },
    }
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


def print_table(results: list[Result]) -> None:
    """Print one row per recipe with its difference to bf16."""
    base = next((r.val_loss for r in results if r.name == "bf16"), None)
    print(f"\n{'recipe':<12}{'val loss':>10}{'vs bf16':>10}{'tokens/s':>12}{'weight bytes':>15}{'peak memory':>13}")
    for r in results:
        difference = f"{100 * (r.val_loss / base - 1):+.2f} %" if base else "-"
        peak = "-" if r.peak_bytes is None else f"{r.peak_bytes / 2**20:,.0f} MiB"
        print(f"{r.name:<12}{r.val_loss:>10.4f}{difference:>10}{r.rate:>12,.0f}{r.weight_bytes:>15,}{peak:>13}")
    print(f"tokens are predicted bytes; peak memory: {results[0].peak_source}")


def write_plot(results: list[Result], title: str, out: Path) -> bool:
    """Draw the loss curves to loss.png, beside them their difference to bf16; False without matplotlib."""
    if not nf.optional.has("matplotlib"):
        return False
    matplotlib = nf.optional.need("matplotlib", extra="plot")
    matplotlib.use("Agg")
    pyplot = nf.optional.need("matplotlib.pyplot", extra="plot")
    base = next((r for r in results if r.name == "bf16"), None)
    compare = base is not None and len(results) > 1
    figure, panels = pyplot.subplots(
        1, 2 if compare else 1, figsize=(10 if compare else 7, 4), layout="constrained", squeeze=False
    )
    for result in results:
        if result.losses:
            panels[0, 0].plot(*_smooth(result.losses), label=f"{result.name} (validation {result.val_loss:.3f})")
            if compare and result is not base:
                (steps, losses), (_, reference) = _smooth(result.losses), _smooth(base.losses)
                shown = min(len(losses), len(reference))  # an interrupted run is shorter
                panels[0, 1].plot(
                    steps[:shown],
                    100 * (losses[:shown] / reference[:shown] - 1),
                    label=result.name,
                    color=_last(panels),
                )
    panels[0, 0].set(xlabel="step", ylabel="training loss, nats per byte", title=title)
    if compare:
        panels[0, 1].set(xlabel="step", ylabel="%", title="difference to bf16")
    for axes in panels.flat:
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    figure.savefig(out / "loss.png", dpi=130)
    pyplot.close(figure)
    return True


def _last(panels: Any) -> Any:
    """The colour of the line drawn last on the left."""
    return panels[0, 0].lines[-1].get_color()


def _smooth(losses: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the running mean of the loss over a fortieth of the readings."""
    steps, values = np.asarray(losses, np.float64).T
    window = max(1, len(values) // 40)
    return steps[window - 1 :], np.convolve(values, np.ones(window) / window, mode="valid")
