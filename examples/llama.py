"""Generate text with a Hugging Face folder of a Llama or Qwen, in any dtype of nvfp.

    python examples/llama.py FOLDER --prompt "Once upon a time" --to nvfp4

Reads config.json and safetensors without torch or transformers, in any dialect of docs/checkpoints.md; quantizes
matrices on load if asked to; uses tokenizer.json where `tokenizers` is installed, bytes otherwise; prints tokens per
second and bytes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llama_model import Llama

import nvfp as nf
from nvfp.optional import has, need


class Bytes:
    """The tokenizer where there is none: a token is a byte."""

    def encode(self, text: str) -> list[int]:
        """Bytes of a text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes; other tokens are left out."""
        return bytes(i for i in ids if i < 256).decode(errors="replace")


class Words:
    """The model's own tokenizer."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = need("tokenizers", extra="hf").Tokenizer.from_file(str(path))

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with those that the model wants in front."""
        return list(self.tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        return str(self.tokenizer.decode(list(ids)))


def tokenizer_of(folder: Path) -> Bytes | Words:
    path = folder / "tokenizer.json"
    return Words(path) if path.is_file() and has("tokenizers") else Bytes()


def load(
    folder: str | Path, *, to: Any = None, head: bool = False, dtype: Any = nf.bfloat16, device: Any = None
) -> Llama:
    """Read a model; with ``to`` its matrices are quantized one by one as they are read.

    Args:
        folder: config.json and safetensors.
        to: a quantized dtype, or None to keep what the folder has.
        head: quantize the head too (an embedding that is the head stays dense).
        dtype: of activations.
        device: where it runs.
    """
    checkpoint = nf.files.open_checkpoint(folder, device=device)
    arrays = {}
    for name, entry in checkpoint.entries.items():
        array = checkpoint[name]
        matrix = name.endswith("_proj.weight") or (head and name == "lm_head.weight")
        if to is not None and matrix and len(entry.shape) == 2 and not isinstance(array, nf.QuantizedArray):
            array = nf.quantize(array, to)
        arrays[name] = array
    return Llama(checkpoint.config, arrays, dtype)


@dataclass
class Speed:
    """What a generation took."""

    prompt: int = 0
    prompt_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    cache_bytes: int = 0

    def __str__(self) -> str:
        prompt = f"prompt: {self.prompt} tokens, {self.prompt / max(self.prompt_seconds, 1e-9):.1f} tokens/s"
        return f"{prompt}; generated: {self.tokens} tokens, {self.tokens / max(self.seconds, 1e-9):.1f} tokens/s"


def generate(
    model: Llama, ids: Sequence[int], count: int, *, temperature: float = 0.0, seed: int = 0, stop: Sequence[int] = (),
    speed: Speed | None = None,
) -> Iterator[int]:  # fmt: skip
    """Yield tokens that follow ``ids``: the likeliest ones, or drawn ones at a temperature above 0."""
    speed = Speed() if speed is None else speed
    cache, rng, step = model.cache(len(ids) + count), np.random.default_rng(seed), list(ids)
    for made in range(count):
        start = time.perf_counter()
        cache.pre_step({"text": len(step)})
        with nf.no_grad():
            logits = model(nf.asarray([step], device=model.table.device), cache)[:, -1]
        token = chosen(logits, temperature, rng)
        seconds = time.perf_counter() - start
        if made:
            speed.tokens, speed.seconds = speed.tokens + 1, speed.seconds + seconds
        else:
            speed.prompt, speed.prompt_seconds = len(ids), seconds
        speed.cache_bytes = model.cache_bytes(cache.max_sequence_length)
        yield token
        if token in stop:
            return
        step = [token]


def chosen(logits: nf.Array, temperature: float, rng: np.random.Generator) -> int:
    """The token of the largest logit, or one drawn from their softmax."""
    if temperature <= 0:
        return int(nf.argmax(logits, axis=-1).item())
    found = np.asarray(logits, np.float64).reshape(-1) / temperature
    weights = np.exp(found - found.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def stops(config: Any) -> tuple[int, ...]:
    found = config.get("eos_token_id")
    return tuple(found) if isinstance(found, list) else () if found is None else (found,)


def main(arguments: Sequence[str] | None = None) -> Speed:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--to", metavar="DTYPE", help="quantize matrices to nvfp4, mxfp8, fp8_e4m3, ...")
    parser.add_argument("--head", action="store_true", help="quantize the head, too")
    parser.add_argument("--dtype", default="bfloat16", help="of activations")
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen_options = parser.parse_args(arguments)
    model = load(
        chosen_options.folder, to=chosen_options.to, head=chosen_options.head, dtype=chosen_options.dtype,
        device=chosen_options.device,
    )  # fmt: skip
    config = nf.files.open_checkpoint(chosen_options.folder, device="cpu").config
    words, speed = tokenizer_of(chosen_options.folder), Speed()
    ids = words.encode(chosen_options.prompt)
    made = generate(
        model, ids, chosen_options.tokens, temperature=chosen_options.temperature, seed=chosen_options.seed,
        stop=stops(config), speed=speed,
    )  # fmt: skip
    print(words.decode([*ids, *made]))
    print(speed)
    print(f"weights: {model.nbytes / 1e6:.1f} MB, cache: {speed.cache_bytes / 1e6:.2f} MB, on {model.table.device}")
    return speed


if __name__ == "__main__":
    main()
