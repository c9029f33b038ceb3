"""Train a byte-level language model in any recipe, on a CPU or a GPU, and compare recipes.

    python examples/train_gpt.py                       # a small GPT in FP8, some two minutes on 2 cores
    python examples/train_gpt.py --recipe all          # every recipe from one seed, a table at the end
    python examples/train_gpt.py --data my_texts/ --steps 3000 --dropout 0.1
    python examples/train_gpt.py --device cuda --graph --layers 12 --hidden 768 --context 1024

Writes metrics.json, loss.png and one checkpoint per recipe to --out. Ctrl-C finishes the step and saves;
--resume goes on from there with the bits of an uninterrupted run.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from corpus import Corpus, load_corpus
from model import ByteGPT, ByteMLP, make_model
from options import FIXED, RECIPES, parse
from report import Result, print_table, write_metrics, write_plot

import nvfp as nf
from nvfp import recipes
from nvfp.errors import NvfpError


@dataclass
class Run:
    """One recipe's training run; `result` is what outlives it."""

    recipe: recipes.Recipe | None
    model: ByteGPT | ByteMLP
    optimizer: nf.optim.AdamW
    batches: nf.random.Generator
    result: Result
    step: int = 0

    def autocast(self) -> Any:
        """The precision context of this run."""
        return nf.autocast(enabled=self.recipe is not None, recipe=self.recipe)

    def weight_bytes(self) -> int:
        """Bytes of all weights as this recipe's GEMMs hold them (one copy), other parameters as they are."""
        total = sum(p.nbytes for p in self.model.parameters().values())
        if self.recipe is not None:
            fmt = self.recipe.linear_plan().w.format
            for weight in self.model.quantized_weights():
                total += nf.quantize(weight.detach(), fmt).nbytes - weight.nbytes
        return total


def make_run(name: str, args: Any, device: Any) -> Run:
    """Build model, optimizer and batch generator; every recipe starts from the same seed."""
    model = make_model(args, device, nf.random.default_rng(args.seed, device=device))
    optimizer = nf.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.05)
    batches = nf.random.default_rng(args.seed + 1, device="cpu")
    result = Result(name, sum(p.size for p in model.parameters().values()))
    return Run(RECIPES[name], model, optimizer, batches, result)


def schedule(step: int, args: Any) -> float:
    """Linear warm-up, then cosine to a tenth of the rate."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = min(1.0, (step - args.warmup) / max(1, args.steps - args.warmup))
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def to_device(run: Run, windows: np.ndarray, device: Any) -> tuple[nf.Array, nf.Array]:
    """Split windows [B, L + 1] into inputs [B, L] and the targets of the model, on the device."""
    ids = windows.astype(np.int32)
    parts = (ids[:, :-1], run.model.targets(ids))
    x, y = (nf.asarray(np.ascontiguousarray(part), device=device) for part in parts)
    return x, y


def train_step(run: Run, x: nf.Array, y: nf.Array) -> nf.Array:
    """One optimizer step; returns the loss on the device. This is what --graph captures."""
    run.optimizer.zero_grad()
    with run.autocast():
        loss = nf.nn.cross_entropy(run.model(x), y)
    loss.backward()
    run.optimizer.step()
    return loss.detach()


def validate(run: Run, corpus: Corpus, args: Any, device: Any) -> float:
    """Mean loss in nats per byte over fixed windows of the validation part."""
    starts = np.linspace(0, len(corpus.validation) - args.context - 1, args.val_windows).astype(np.int64)
    run.model.eval()
    total = 0.0
    with nf.no_grad(), run.autocast():
        for chunk in np.array_split(starts, math.ceil(len(starts) * args.context / 2**14)):
            x, y = to_device(run, corpus.batch(chunk, args.context, part="validation"), device)
            total += float(nf.nn.cross_entropy(run.model(x), y)) * len(chunk)
    run.model.train()
    return total / len(starts)


def sample(run: Run, prompt: bytes, args: Any, device: Any, length: int = 160) -> str:
    """Continue a prompt byte by byte."""
    text = list(prompt)
    rng = np.random.default_rng(args.seed)
    run.model.eval()
    with nf.no_grad(), run.autocast():
        for _ in range(length):
            logits = run.model.next_logits(text, device) / 0.8
            p = np.exp(logits - logits.max())
            text.append(int(rng.choice(256, p=p / p.sum())))
    run.model.train()
    return bytes(text).decode("utf-8", errors="replace")


def progress_bar(run: Run, args: Any) -> Any:
    """A tqdm bar when tqdm is installed; None otherwise."""
    if not nf.optional.has("tqdm"):
        return None
    tqdm = nf.optional.need("tqdm", extra="plot").tqdm
    return tqdm(
        total=args.steps,
        initial=run.step,
        desc=f"{run.result.name:>11}",
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


def train(run: Run, corpus: Corpus, args: Any, device: Any, stop: threading.Event) -> None:
    """Run the steps that are left, until `stop`; the loss is read only now and then, so that a GPU never waits."""
    bar, result = progress_bar(run, args), run.result
    if bar is not None and run.step < args.steps:
        bar.set_postfix_str("the first step compiles kernels or loads them")
    step: Callable[..., nf.Array] = partial(train_step, run)
    if args.graph:
        step = nf.cuda_graph(step)
    limit = len(corpus.train) - args.context
    uncounted = 2 if args.graph else 1  # steps that compile kernels or capture; the rate counts from then on
    started, tokens, first = None, result.tokens, run.step
    try:
        while run.step < args.steps and not stop.is_set():
            starts = np.asarray(run.batches.integers(0, limit, size=(args.batch,)))
            x, y = to_device(run, corpus.batch(starts, args.context), device)
            run.optimizer.lr = schedule(run.step, args)
            loss = step(x, y)
            run.step += 1
            if started is not None:
                result.tokens += y.size
            elif run.step - first == uncounted:
                float(loss)
                started = time.perf_counter()
                if bar is not None:  # nor does the time left count the compiler
                    bar.unpause()
                    bar.set_postfix_str("", refresh=False)
            if run.step % args.log_every == 0 or run.step == args.steps:
                result.losses.append((run.step, float(loss)))
                if bar is not None and started is not None:
                    rate = (result.tokens - tokens) / max(time.perf_counter() - started, 1e-9)
                    bar.set_postfix_str(f"loss {result.losses[-1][1]:.3f}, {rate / 1e3:.1f}k tokens/s", refresh=False)
            if bar is not None:
                bar.update()
        if started is not None:
            float(loss)  # what is still under way counts
    finally:
        result.seconds += time.perf_counter() - started if started is not None else 0.0
        if bar is not None:
            bar.close()


def checkpoint_path(run: Run, out: Path) -> Path:
    """Where the checkpoint of one run lies."""
    return out / f"{run.result.name}.safetensors"


def save_run(run: Run, corpus: Corpus, args: Any, out: Path) -> None:
    """Write the checkpoint of one run."""
    result = run.result
    nf.save_checkpoint(
        checkpoint_path(run, out),
        run.model,
        run.optimizer,
        generators={"batches": run.batches},
        extra={
            "step": run.step,
            "recipe": result.name,
            "corpus_sha256": corpus.sha256,
            "options": {name: getattr(args, name) for name in FIXED},
            "losses": result.losses,
            "seconds": result.seconds,
            "tokens": result.tokens,
        },
    )


def check_checkpoint(path: Path, corpus: Corpus, args: Any) -> None:
    """Raise ValueError unless the checkpoint belongs to this recipe, corpus, seed and shape."""
    _, metadata = nf.files.load_with_metadata(path, device="cpu")
    extra = json.loads(metadata.get("nvfp.checkpoint", "{}")).get("extra", {})
    if "options" not in extra:
        raise ValueError(f"{path} is no checkpoint of this script; pass one that it wrote to --out")
    if extra["recipe"] != args.recipe:
        raise ValueError(f"{path} holds recipe {extra['recipe']}, not {args.recipe}; pass --recipe {extra['recipe']}")
    saved = extra["options"]
    other = [f"--{name} {saved.get(name)}" for name in FIXED if saved.get(name) != getattr(args, name)]
    if other:
        raise ValueError(f"{path} was made with {' '.join(other)}; pass the same")
    if extra["corpus_sha256"] != corpus.sha256:
        raise ValueError(
            f"{path} was made from another corpus (sha256 {extra['corpus_sha256'][:12]}..., this one "
            f"{corpus.sha256[:12]}...); pass the same --data, unchanged"
        )


def resume_run(run: Run, path: Path) -> None:
    """Continue from a checkpoint with the same bits as an uninterrupted run."""
    extra = nf.load_checkpoint(path, run.model, run.optimizer, generators={"batches": run.batches})
    run.step, run.result.seconds, run.result.tokens = extra["step"], extra["seconds"], extra["tokens"]
    run.result.losses = [(int(s), float(v)) for s, v in extra["losses"]]


def choose_device(args: Any) -> Any:
    """Return the device, or raise `NvfpError` with the reason why CUDA is not usable."""
    device = nf.default_device() if args.device == "auto" else nf.Device(args.device)
    if device.type == "cuda" and (problem := nf.device.cuda_problem()):
        raise NvfpError(f"--device cuda: {problem}")
    if args.graph and device.type != "cuda":
        raise NvfpError(f"--graph captures a CUDA graph and the device is {device}; leave it out")
    return device


def run_recipe(name: str, corpus: Corpus, args: Any, device: Any, out: Path) -> tuple[Result, bool]:
    """Train, validate and save one recipe; returns its result and whether it was interrupted."""
    told = device.type == "cuda" or sys.platform != "win32"  # else no system call tells the memory
    with nf.inspect.peak_memory(device) if told else nullcontext() as peak:
        run = make_run(name, args, device)
        steps = f"{args.steps} steps of {args.batch} windows of {args.context} bytes"
        print(f"{name}: {args.model} with {run.result.parameters:,} parameters on {device}, {steps}")
        if args.resume:
            resume_run(run, Path(args.resume))
            left = max(0, args.steps - run.step)
            print(f"going on after step {run.step}, {left} left" + ("" if left else "; pass more --steps to train on"))
        with first_interrupt_held() as stop:
            train(run, corpus, args, device, stop)
    result = run.result
    if peak is not None:
        result.peak_bytes, result.peak_source = peak.bytes, peak.source
    save_run(run, corpus, args, out)  # before anything that takes time: a second Ctrl-C finds it there
    if stop.is_set():
        print(f"\ninterrupted at step {run.step}; --resume {checkpoint_path(run, out)} goes on from there")
    result.val_loss, result.weight_bytes = validate(run, corpus, args, device), run.weight_bytes()
    print(f"{name}: validation loss {result.val_loss:.4f} nats/byte")
    if not stop.is_set():
        print("sample:\n" + sample(run, corpus.prompt, args, device) + "\n")
    return result, stop.is_set()


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    args = parse(argv, __doc__)
    out = Path(args.out)
    try:
        device = choose_device(args)
        corpus = load_corpus(args.data)
        corpus.check_context(args.context)
        if args.resume:
            check_checkpoint(Path(args.resume), corpus, args)
        out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, NvfpError) as error:
        print(f"train_gpt.py: error: {error}", file=sys.stderr)
        return 2
    print(
        f"{corpus.files} files, {len(corpus.train):,} training and {len(corpus.validation):,} validation bytes, "
        f"sha256 {corpus.sha256}"
    )
    results: list[Result] = []
    interrupted = False
    for name in list(RECIPES) if args.recipe == "all" else [args.recipe]:
        result, interrupted = run_recipe(name, corpus, args, device, out)
        results.append(result)
        if interrupted:
            break
    options = {name: getattr(args, name) for name in (*FIXED, "steps", "lr", "warmup", "graph")}
    write_metrics(results, corpus.sha256, options, device, out)
    title = f"Byte-level {args.model.upper()}, {results[0].parameters / 1e6:.2f} M parameters, one seed"
    plotted = write_plot(results, title, out)
    print_table(results)
    print(
        f"\nwrote {out / 'metrics.json'}, checkpoints"
        + (f" and {out / 'loss.png'}" if plotted else "; pip install 'nvfp[plot]' for loss.png")
    )
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
