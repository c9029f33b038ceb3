r"""Train the job of train_gpt.py in every recipe and several seeds, one JSON file a run.

    python examples/convergence.py --out runs/cpu --seeds 0,1,2
    python examples/convergence.py --out runs/gpu --device cuda --graph --layers 12 --hidden 768 \
        --context 1024 --batch 8 --steps 2000 --seeds 0 --bf16-seeds 0,1,2
    python docs/make_convergence.py runs/gpu runs/cpu          # docs/convergence.md and its curves

Every other option is one of train_gpt.py. A run whose file lies in --out already is not made again, so that a
study that was stopped goes on; files of another corpus or other options are refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import train_gpt
from corpus import Corpus, load_corpus
from options import FIXED, RECIPES, parse

from nvfp.errors import NvfpError

SAME = tuple(name for name in FIXED if name != "seed")  # what the runs of a study have in common


def seeds(text: str) -> list[int]:
    """Read ``"0,1,2"``."""
    return [int(part) for part in text.split(",")]


def split(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of the study, and what is left for train_gpt.py."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    p.add_argument("--out", default="runs/convergence", help="folder of the runs (%(default)s)")
    p.add_argument("--recipes", default=",".join(RECIPES), help="which, by commas (all)")
    p.add_argument("--seeds", type=seeds, default=[0], help="seeds of each recipe, by commas (0)")
    p.add_argument("--bf16-seeds", type=seeds, help="seeds of bf16, whose spread is the yardstick (as --seeds)")
    study, rest = p.parse_known_args(argv)
    study.recipes = study.recipes.split(",")
    if unknown := [name for name in study.recipes if name not in RECIPES]:
        p.error(f"--recipes: {unknown[0]} is none of {', '.join(RECIPES)}")
    if refused := {"--recipe", "--seed", "--resume"}.intersection(part.partition("=")[0] for part in rest):
        p.error(f"{min(refused)} is no option here; use --recipes and --seeds")
    return study, rest


def describe(name: str, args: Any, corpus: Corpus, device: Any) -> dict[str, Any]:
    """What a run is, apart from its result."""
    options = {option: getattr(args, option) for option in (*SAME, "steps", "lr", "warmup", "graph")}
    return {
        "recipe": name,
        "precision": str(RECIPES[name]),
        "seed": args.seed,
        "options": options,
        "corpus_sha256": corpus.sha256,
        "device": device.name,
    }


def is_done(path: Path, wanted: dict[str, Any]) -> bool:
    """Whether this very run lies there; ValueError if another one does."""
    if not path.exists():
        return False
    found = json.loads(path.read_text())
    for key in ("precision", "options", "corpus_sha256"):
        if found[key] != wanted[key]:
            raise ValueError(f"{path} is of another study ({key} {found[key]}, not {wanted[key]}); pass another --out")
    return True


def one(name: str, args: Any, corpus: Corpus, device: Any, path: Path) -> None:
    """Train and validate one recipe with one seed, and write its file."""
    wanted = describe(name, args, corpus, device)
    if is_done(path, wanted):
        print(f"{path} is there")
        return
    began = time.perf_counter()
    run = train_gpt.make_run(name, args, device)
    with train_gpt.first_interrupt_held() as stop:
        train_gpt.train(run, corpus, args, device, stop)
    if stop.is_set():
        raise KeyboardInterrupt
    wanted["val_loss"] = train_gpt.validate(run, corpus, args, device)
    wanted |= {"losses": run.result.losses, "tokens_per_s": run.result.rate, "parameters": run.result.parameters}
    wanted["seconds"] = time.perf_counter() - began
    path.write_text(json.dumps(wanted) + "\n")
    print(f"{name}, seed {args.seed}: {wanted['val_loss']:.4f} nats/byte, {wanted['seconds']:.0f} s", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    study, rest = split(sys.argv[1:] if argv is None else argv)
    args, out = parse(rest, __doc__), Path(study.out)
    try:
        device = train_gpt.choose_device(args)
        corpus = load_corpus(args.data)
        corpus.check_context(args.context)
        out.mkdir(parents=True, exist_ok=True)
        for name in study.recipes:
            for args.seed in (study.bf16_seeds or study.seeds) if name == "bf16" else study.seeds:
                one(name, args, corpus, device, out / f"{name}-{args.seed}.json")
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here")
        return 130
    except (OSError, ValueError, NvfpError) as error:
        print(f"convergence.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
