"""Writes docs/convergence.md and its curves from the runs of examples/convergence.py.

python docs/make_convergence.py runs/gpu runs/cpu
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from nvfp.optional import need

HERE = Path(__file__).parent
LIMITS = {"nvfp4": 1.5}  # percent; others 0.5
INTRODUCTION = """# Does training in few bits converge?

Every run here is the byte-level GPT of `examples/train_gpt.py`, trained by `examples/convergence.py`; this page is
written by `python docs/make_convergence.py` from the files of those runs. Embedding and output layer stay in the
parameters' dtype under every recipe; what a recipe quantizes are the linear layers of the Transformer blocks.

The figure to look at is the validation loss against that of bf16 with the same seeds. Two runs in bf16 that differ in
the seed alone differ as well: a recipe passes if its difference is at most 0.5 % (NVFP4: 1.5 %), or at most two
standard deviations of bf16's own seeds, whichever is more.
"""
HEAD = (
    "recipe", "precision", "seeds", "validation loss (mean)", "spread of the seeds", "against bf16", "limit", "",
    "s a run",
)  # fmt: skip


def load(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Recipe -> its runs, by seed; all of one study."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*-*.json")):
        run = json.loads(path.read_text())
        found.setdefault(run["recipe"], []).append(run)
    if "bf16" not in found:
        raise SystemExit(f"{folder}: no run in bf16 to compare with")
    first = found["bf16"][0]
    for run in (run for runs in found.values() for run in runs):
        for key in ("options", "corpus_sha256", "device"):
            if run[key] != first[key]:
                raise SystemExit(f"{folder}: runs of two studies ({key})")
    order = ["bf16", *(name for name in found if name != "bf16")]
    return {name: found[name] for name in order}


def spread(values: list[float]) -> float:
    """Standard deviation of a sample; NaN of a single value."""
    return stdev(values) if len(values) > 1 else math.nan


def table(study: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The rows of a study, with the verdict."""
    base = [run["val_loss"] for run in study["bf16"]]
    two_sigma = 200 * spread(base) / mean(base)
    lines = [
        f"| {' | '.join(HEAD)} |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for name, runs in study.items():
        losses = [run["val_loss"] for run in runs]
        same = [run["val_loss"] for run in study["bf16"] if run["seed"] in {r["seed"] for r in runs}]
        difference = 100 * (mean(losses) / mean(same or base) - 1)
        limit = max(LIMITS.get(name, 0.5), two_sigma if math.isfinite(two_sigma) else 0.0)
        verdict = "" if name == "bf16" else "passes" if difference <= limit else "**fails**"
        shown = [f"{100 * spread(losses) / mean(losses):.2f} %" if len(losses) > 1 else "-"]
        shown += ["-", "-"] if name == "bf16" else [f"{difference:+.2f} %", f"{limit:.2f} %"]
        seconds = mean(run["seconds"] for run in runs)
        lines.append(
            f"| {name} | {runs[0]['precision'] if name != 'bf16' else 'bfloat16'} | {len(runs)} | {mean(losses):.4f} "
            f"| {' | '.join(shown)} | {verdict} | {seconds:.0f} |"
        )
    return lines


def not_run(study: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A sentence on what a reader may miss."""
    single = [name for name, runs in study.items() if len(runs) == 1]
    by_seed = ", ".join(f"{run['val_loss']:.4f} (seed {run['seed']})" for run in study["bf16"])
    text = [f"bf16 one by one: {by_seed}."]
    text += [f"One seed only, so without a spread of its own: {', '.join(single)}."] if single else []
    return [" ".join(text), ""]


def section(title: str, study: dict[str, list[dict[str, Any]]], picture: str) -> list[str]:
    """Heading, conditions, table and curves of a study."""
    run = study["bf16"][0]
    o, mega = run["options"], 1e6
    return [
        f"## {title}",
        "",
        f"{o['layers']} layers, hidden {o['hidden']}, {o['heads']} heads, context {o['context']}, {o['batch']} windows "
        f"a step, {o['steps']:,} steps ({o['steps'] * o['batch'] * o['context'] / mega:.1f} M bytes), "
        f"{run['parameters'] / mega:.2f} M parameters, rate {o['lr']:g}, dropout {o['dropout']:g}; {run['device']}; "
        f"corpus sha256 `{run['corpus_sha256'][:16]}`.",
        "",
        *table(study),
        "",
        *not_run(study),
        f"![loss curves]({picture})",
        "",
    ]


def draw(study: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Loss over steps, and its difference to bf16 of the same seed."""
    need("matplotlib", extra="plot").use("Agg")
    pyplot = need("matplotlib.pyplot", extra="plot")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    base = {run["seed"]: smooth(run["losses"])[1] for run in study["bf16"]}
    for number, (name, runs) in enumerate(study.items()):
        for run in runs:
            steps, losses = smooth(run["losses"])
            left.plot(steps, losses, color=f"C{number}", lw=1, label=name if run is runs[0] else None)
            reference = base.get(run["seed"])
            if name != "bf16" and reference is not None:
                right.plot(steps, 100 * (losses / reference - 1), color=f"C{number}", lw=1)
    left.set(xlabel="step", ylabel="training loss, nats per byte", yscale="log")
    right.set(xlabel="step", ylabel="%", title="difference to bf16 of the same seed")
    left.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def smooth(losses: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the running mean over a twentieth of the readings."""
    steps, values = np.asarray(losses, np.float64).T
    window = max(1, len(values) // 20)
    return steps[window - 1 :], np.convolve(values, np.ones(window) / window, mode="valid")


def main(folders: list[str]) -> None:
    """Write the page."""
    lines = INTRODUCTION.splitlines()
    for folder in map(Path, folders):
        study, picture = load(folder), f"convergence_{folder.name}.png"
        draw(study, HERE / picture)
        device = study["bf16"][0]["device"]
        lines += ["", *section("On a GPU" if "NVIDIA" in device else "On a CPU", study, picture)]
    (HERE / "convergence.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
