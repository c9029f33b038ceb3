"""Train a byte-level language model in any recipe, on a CPU or a GPU, and compare recipes.

    python examples/train_gpt.py                       # FP8 delayed scaling, two to three minutes on 2 cores
    python examples/train_gpt.py --recipe all          # every recipe from one seed, a table at the end
    python examples/train_gpt.py --data my_texts/ --steps 3000 --device cuda

Writes metrics.json, loss.png and one checkpoint per recipe to --out. Ctrl-C finishes the step and saves;
--resume goes on from there with the bits of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from corpus import Corpus, load_corpus

import nvfp as nf
from nvfp import recipes
from nvfp.errors import NvfpError

RECIPES: dict[str, recipes.Recipe | None] = {
    "bf16": None,
    "fp8": recipes.DelayedScaling(),
    "fp8-current": recipes.Float8CurrentScaling(),
    "mxfp8": recipes.MXFP8BlockScaling(),
    "nvfp4": recipes.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True),
}
CONTEXT = 16


class ByteMLP(nf.nn.Module):
    """Predict the next byte from the last 16: embedding, two hidden GELU layers, logits.

    ids [B, 16] -> [B, 16, E] -> [B, 16 E] -> [B, H] -> [B, H] -> logits [B, 256].

    The output layer stays in bf16 under every recipe, as is usual: the gradient of softmax sums to zero
    over the vocabulary, and rounding it to two mantissa bits breaks that sum, so that logits drift.
    """

    def __init__(self, embedding: int, hidden: int, *, dtype: Any, device: Any, rng: Any) -> None:
        super().__init__()
        options = {"dtype": dtype, "device": device, "rng": rng}

        def init(shape: tuple[int, ...], rng: Any, dtype: Any, device: Any) -> nf.Array:
            return rng.normal(0.0, 1.0 / math.sqrt(shape[1]), size=shape, dtype=dtype, device=device)

        self.embedding = nf.nn.Embedding(256, embedding, **options)
        self.fc1 = nf.nn.Linear(CONTEXT * embedding, hidden, init_method=init, **options)
        self.fc2 = nf.nn.Linear(hidden, hidden, init_method=init, **options)
        self.head = nf.nn.Linear(hidden, 256, init_method=init, **options)
        self.act = nf.nn.GELU()

    def forward(self, ids: nf.Array) -> nf.Array:
        """Return logits [B, 256]."""
        x = self.embedding(ids)
        x = self.act(self.fc1(x.reshape((ids.shape[0], -1))))
        x = self.act(self.fc2(x))
        with nf.autocast(enabled=False):  # see the class
            return self.head(x)


@dataclass
class Run:
    """One recipe's training run and what it has produced so far."""

    name: str
    recipe: recipes.Recipe | None
    model: ByteMLP
    optimizer: nf.optim.AdamW
    batches: Any
    losses: list[tuple[int, float]] = field(default_factory=list)
    step: int = 0
    seconds: float = 0.0
    val_loss: float = math.nan
    tokens: int = 0

    def autocast(self) -> Any:
        """The precision context of this run."""
        return nf.autocast(enabled=self.recipe is not None, recipe=self.recipe)

    def weight_bytes(self) -> int:
        """Bytes of all weights as this recipe's GEMMs hold them (one copy), other parameters as they are."""
        total = sum(p.nbytes for p in self.model.parameters().values())
        if self.recipe is None:
            return total
        fmt = self.recipe.linear_plan().w.format
        for layer in (self.model.fc1, self.model.fc2):
            total += nf.quantize(layer.weight.detach(), fmt).nbytes - layer.weight.nbytes
        return total


def make_run(name: str, args: argparse.Namespace, device: Any) -> Run:
    """Build model, optimizer and batch generator; every recipe starts from the same seed."""
    rng = nf.random.default_rng(args.seed, device=device)
    model = ByteMLP(args.embedding, args.hidden, dtype=nf.bfloat16, device=device, rng=rng)
    optimizer = nf.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.05)
    return Run(name, RECIPES[name], model, optimizer, nf.random.default_rng(args.seed + 1, device="cpu"))


def schedule(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, then cosine to a tenth of the rate."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = min(1.0, (step - args.warmup) / max(1, args.steps - args.warmup))
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def to_device(windows: np.ndarray, device: Any) -> tuple[nf.Array, nf.Array]:
    """Split windows [B, 17] into contexts [B, 16] and targets [B] on the device."""
    ids = windows.astype(np.int32)
    return nf.asarray(np.ascontiguousarray(ids[:, :-1]), device=device), nf.asarray(
        np.ascontiguousarray(ids[:, -1]), device=device
    )


def train_step(run: Run, x: nf.Array, y: nf.Array) -> nf.Array:
    """One optimizer step; returns the loss on the device."""
    with run.autocast():
        loss = nf.nn.cross_entropy(run.model(x), y)
    loss.backward()
    run.optimizer.step()
    run.optimizer.zero_grad()
    return loss


def validate(run: Run, corpus: Corpus, args: argparse.Namespace, device: Any) -> float:
    """Mean loss in nats per byte over fixed windows of the validation files."""
    starts = np.linspace(0, len(corpus.validation) - CONTEXT - 2, args.val_windows).astype(np.int64)
    run.model.eval()
    total = 0.0
    with nf.no_grad(), run.autocast():
        for chunk in np.array_split(starts, max(1, args.val_windows // 2048)):
            x, y = to_device(corpus.batch(chunk, CONTEXT, part="validation"), device)
            total += float(nf.nn.cross_entropy(run.model(x), y)) * len(chunk)
    run.model.train()
    return total / len(starts)


def sample(run: Run, args: argparse.Namespace, device: Any, length: int = 160) -> str:
    """Continue a prompt byte by byte."""
    prompt = b"    def __init__(self, "
    text = list(prompt)
    rng = np.random.default_rng(args.seed)
    run.model.eval()
    with nf.no_grad(), run.autocast():
        for _ in range(length):
            ids = nf.asarray(np.asarray([text[-CONTEXT:]], np.int32), device=device)
            logits = np.asarray(run.model(ids), np.float64)[0] / 0.8
            p = np.exp(logits - logits.max())
            text.append(int(rng.choice(256, p=p / p.sum())))
    run.model.train()
    return bytes(text).decode("utf-8", errors="replace")


def progress_bar(run: Run, args: argparse.Namespace) -> Any:
    """A tqdm bar when tqdm is installed and the output is a terminal or a log; None otherwise."""
    if not nf.optional.has("tqdm"):
        return None
    tqdm = nf.optional.need("tqdm", extra="plot").tqdm
    return tqdm(
        total=args.steps,
        initial=run.step,
        desc=f"{run.name:>11}",
        unit="step",
        mininterval=1.0,
        file=sys.stdout,
        dynamic_ncols=True,
    )


@contextmanager
def first_interrupt_held() -> Iterator[threading.Event]:
    """Note the first Ctrl-C, so that a checkpoint never holds half a step; let the second one raise."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals reach only the main thread
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def note(*_: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def train(run: Run, corpus: Corpus, args: argparse.Namespace, device: Any, stop: threading.Event) -> None:
    """Run the steps that are left, until `stop`; the loss is read only now and then, so that a GPU never waits."""
    bar = progress_bar(run, args)
    limit = len(corpus.train) - CONTEXT - 1
    started, tokens = None, run.tokens
    try:
        while run.step < args.steps and not stop.is_set():
            starts = np.asarray(run.batches.integers(0, limit, size=(args.batch,)))
            x, y = to_device(corpus.batch(starts, CONTEXT), device)
            run.optimizer.lr = schedule(run.step, args)
            loss = train_step(run, x, y)
            run.step += 1
            if started is None:  # the first step compiles kernels; the rate counts from the second
                started = time.perf_counter()
            else:
                run.tokens += args.batch
            if run.step % args.log_every == 0 or run.step == args.steps:
                run.losses.append((run.step, float(loss)))
                if bar is not None:
                    rate = (run.tokens - tokens) / max(time.perf_counter() - started, 1e-9)
                    bar.set_postfix_str(f"loss {run.losses[-1][1]:.3f}, {rate / 1e3:.1f}k tokens/s", refresh=False)
            if bar is not None:
                bar.update()
    finally:
        run.seconds += time.perf_counter() - started if started is not None else 0.0
        if bar is not None:
            bar.close()


def save_run(run: Run, out: Path) -> None:
    """Write the checkpoint of one run."""
    nf.save_checkpoint(
        out / f"{run.name}.safetensors",
        run.model,
        run.optimizer,
        generators={"batches": run.batches},
        extra={
            "step": run.step,
            "recipe": run.name,
            "losses": run.losses,
            "seconds": run.seconds,
            "tokens": run.tokens,
        },
    )


def resume_run(run: Run, path: Path) -> None:
    """Continue from a checkpoint with the same bits as an uninterrupted run."""
    extra = nf.load_checkpoint(path, run.model, run.optimizer, generators={"batches": run.batches})
    if extra.get("recipe") != run.name:
        raise ValueError(f"{path} holds recipe {extra.get('recipe')}, not {run.name}; pass --recipe to match it")
    run.step, run.seconds, run.tokens = extra["step"], extra["seconds"], extra["tokens"]
    run.losses = [(int(s), float(v)) for s, v in extra["losses"]]


def write_metrics(runs: list[Run], corpus: Corpus, args: argparse.Namespace, device: Any) -> dict[str, Any]:
    """Write metrics.json and return its content."""
    metrics = {
        "device": str(device),
        "corpus_sha256": corpus.sha256,
        "steps": args.steps,
        "recipes": {
            r.name: {
                "val_loss": r.val_loss,
                "tokens_per_s": r.tokens / r.seconds if r.seconds else 0.0,
                "weight_bytes": r.weight_bytes(),
            }
            for r in runs
        },
    }
    (Path(args.out) / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    return metrics


def write_plot(runs: list[Run], out: Path) -> bool:
    """Draw the loss curves to loss.png; returns False when matplotlib is not installed."""
    if not nf.optional.has("matplotlib"):
        return False
    matplotlib = nf.optional.need("matplotlib", extra="plot")
    matplotlib.use("Agg")
    pyplot = nf.optional.need("matplotlib.pyplot", extra="plot")
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for run in runs:
        if run.losses:
            steps, losses = np.asarray(run.losses).T
            window = max(1, len(losses) // 40)
            smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
            axes.plot(steps[window - 1 :], smooth, label=f"{run.name} (validation {run.val_loss:.3f})")
    axes.set(xlabel="step", ylabel="training loss, nats per byte", title="Byte-level model, one seed, same batches")
    if axes.lines:
        axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(out / "loss.png", dpi=130)
    pyplot.close(figure)
    return True


def print_table(metrics: dict[str, Any]) -> None:
    """Print one row per recipe with its difference to bf16."""
    rows = metrics["recipes"]
    base = rows.get("bf16", {}).get("val_loss")
    print(f"\n{'recipe':<12}{'val loss':>10}{'vs bf16':>10}{'tokens/s':>12}{'weight bytes':>14}")
    for name, row in rows.items():
        difference = f"{100 * (row['val_loss'] / base - 1):+.2f} %" if base else "-"
        print(
            f"{name:<12}{row['val_loss']:>10.4f}{difference:>10}{row['tokens_per_s']:>12,.0f}{row['weight_bytes']:>14,}"
        )


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line; argparse exits with code 2 on a bad one."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=["mlp"], default="mlp", help="an MLP over the last 16 bytes (%(default)s)")
    p.add_argument("--recipe", choices=[*RECIPES, "all"], default="fp8", help="%(default)s unless given")
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA where there is one")
    p.add_argument("--data", help="folder of 20 text files or more; default: the source of Python's standard library")
    for name, default, text in (
        ("steps", 800, "optimizer steps"),
        ("batch", 512, "windows per step"),
        ("hidden", 512, "width of the hidden layers"),
        ("embedding", 32, "width of a byte's embedding"),
        ("lr", 3e-3, "learning rate after the warm-up"),
        ("warmup", 60, "steps of linear warm-up"),
        ("seed", 0, "seed of weights and batches"),
        ("log-every", 10, "steps between readings of the loss"),
        ("val-windows", 32768, "windows of the validation loss"),
    ):
        p.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} (%(default)s)")
    p.add_argument("--out", default="runs/train_gpt", help="folder of what is written (%(default)s)")
    p.add_argument("--resume", help="checkpoint to go on from (one recipe, same options)")
    args = p.parse_args(argv)
    if args.resume and args.recipe == "all":
        p.error("--resume goes on with one recipe; name it with --recipe")
    for name in ("steps", "batch", "hidden", "embedding", "warmup", "log_every", "val_windows"):
        if getattr(args, name) < 1:
            p.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    return args


def choose_device(name: str) -> Any:
    """Return the device, or raise `NvfpError` with the reason why CUDA is not usable."""
    device = nf.default_device() if name == "auto" else nf.Device(name)
    if device.type == "cuda" and (problem := nf.device.cuda_problem()):
        raise NvfpError(f"--device cuda: {problem}")
    return device


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    args = parse(argv)
    try:
        device = choose_device(args.device)
        corpus = load_corpus(args.data)
        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        names = list(RECIPES) if args.recipe == "all" else [args.recipe]
        runs = [make_run(name, args, device) for name in names]
        if args.resume:
            resume_run(runs[0], Path(args.resume))
    except (OSError, ValueError, NvfpError) as error:
        print(f"train_gpt.py: error: {error}", file=sys.stderr)
        return 2
    print(
        f"{corpus.files} files, {len(corpus.train):,} training and {len(corpus.validation):,} validation bytes, "
        f"sha256 {corpus.sha256}"
    )
    parameters = sum(p.size for p in runs[0].model.parameters().values())
    print(f"model {args.model}, {parameters:,} parameters, device {device}, {args.steps} steps of {args.batch} windows")
    done: list[Run] = []
    code = 0
    for run in runs:
        with first_interrupt_held() as stop:
            train(run, corpus, args, device, stop)
        if stop.is_set():
            print(f"\ninterrupted at step {run.step}; saving")
            code = 130
        run.val_loss = validate(run, corpus, args, device)
        save_run(run, out)
        done.append(run)
        print(f"{run.name}: validation loss {run.val_loss:.4f} nats/byte")
        if code:
            break
    if not code:
        print("\nsample:\n" + sample(done[-1], args, device))
    metrics = write_metrics(done, corpus, args, device)
    plotted = write_plot(done, out)
    print_table(metrics)
    print(
        f"\nwrote {out / 'metrics.json'}, checkpoints"
        + (f" and {out / 'loss.png'}" if plotted else "; pip install 'nvfp[plot]' for loss.png")
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
