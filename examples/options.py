"""The command line of train_gpt.py."""

from __future__ import annotations

import argparse
import math

from nvfp import recipes

RECIPES: dict[str, recipes.Recipe | None] = {
    "bf16": None,
    "fp8": recipes.DelayedScaling(),
    "fp8-current": recipes.Float8CurrentScaling(),
    "fp8-block": recipes.Float8BlockScaling(),
    "mxfp8": recipes.MXFP8BlockScaling(),
    "nvfp4": recipes.NVFP4BlockScaling(),
}
# name -> (what it is, default by model); None: the model has no such option.
NUMBERS: dict[str, tuple[str, dict[str, float | None]]] = {
    "steps": ("optimizer steps", {"gpt": 450, "mlp": 800}),
    "batch": ("windows per step", {"gpt": 16, "mlp": 512}),
    "context": ("bytes that a window shows", {"gpt": 64, "mlp": 16}),
    "layers": ("Transformer layers", {"gpt": 2, "mlp": None}),
    "hidden": ("width of the layers", {"gpt": 128, "mlp": 512}),
    "heads": ("attention heads, from --hidden 320 on one per 64", {"gpt": 4, "mlp": None}),
    "embedding": ("width of a byte's embedding", {"gpt": None, "mlp": 32}),
    "warmup": ("steps of linear warm-up", {"gpt": 40, "mlp": 60}),
    "val-windows": ("windows of the validation loss", {"gpt": 1024, "mlp": 32768}),
}
# What a checkpoint belongs to; steps, rate and logging may differ when a run goes on.
FIXED = ("model", "batch", "context", "layers", "hidden", "heads", "embedding", "dropout", "seed")


def parse(argv: list[str] | None, description: str | None) -> argparse.Namespace:
    """Read the command line; argparse exits with code 2 on a bad one."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=["gpt", "mlp"], default="gpt", help="a Transformer, or an MLP (%(default)s)")
    p.add_argument("--recipe", choices=[*RECIPES, "all"], default="fp8", help="%(default)s unless given")
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA where there is one")
    p.add_argument("--data", help="a text file or a folder of text; default: the source of Python's standard library")
    for name, (text, defaults) in NUMBERS.items():
        shown = ", ".join(f"{model} {value}" for model, value in defaults.items() if value is not None)
        p.add_argument(f"--{name}", type=int, help=f"{text} ({shown})")
    p.add_argument("--dropout", type=float, help="of attention and of what a layer adds (gpt 0)")
    p.add_argument(
        "--lr",
        type=float,
        help="learning rate after the warm-up (gpt 0.001 at --hidden 128, less for wider ones; mlp 0.003)",
    )
    p.add_argument("--seed", type=int, default=0, help="seed of weights, batches and dropout (%(default)s)")
    p.add_argument("--log-every", type=int, default=10, help="steps between readings of the loss (%(default)s)")
    p.add_argument("--graph", action="store_true", help="CUDA: capture the training step as a graph")
    p.add_argument("--out", default="runs/train_gpt", help="folder of what is written (%(default)s)")
    p.add_argument("--resume", help="checkpoint to go on from (one recipe, same options)")
    args = p.parse_args(argv)
    _fill(p, args)
    _check(p, args)
    return args


def _fill(p: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Put in the defaults of the model; refuse options that it does not have."""
    if args.model == "gpt" and args.heads is None and args.hidden is not None:
        args.heads = max(4, args.hidden // 64)
    for option, (_, defaults) in NUMBERS.items():
        name, default = option.replace("-", "_"), defaults[args.model]
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif default is None:
            p.error(f"--{option} is no option of --model {args.model}")
    if args.model == "mlp" and args.dropout:
        p.error("--dropout is no option of --model mlp")
    args.dropout = args.dropout or 0.0
    if args.lr is None:
        args.lr = 3e-3 if args.model == "mlp" else round(1e-3 * math.sqrt(128 / max(1, args.hidden)), 6)


def _check(p: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse values that cannot work, before anything is read."""
    for option in (*NUMBERS, "log-every"):
        value = getattr(args, option.replace("-", "_"))
        if value is not None and value < 1:
            p.error(f"--{option} must be at least 1, got {value}")
    if not 0 <= args.dropout < 1:
        p.error(f"--dropout must be from 0 to below 1, got {args.dropout}")
    if not 0 < args.lr < float("inf"):
        p.error(f"--lr must be positive, got {args.lr}")
    if args.model == "gpt" and args.hidden % (2 * args.heads):
        p.error(f"--hidden must be an even multiple of --heads, got {args.hidden} and {args.heads}")
    if args.resume and args.recipe == "all":
        p.error("--resume goes on with one recipe; name it with --recipe")
