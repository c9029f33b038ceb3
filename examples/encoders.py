"""Two small models with encoders, built of nvfp's layers: one shaped like BERT, one like T5.

    python examples/encoders.py                        # both, 50 steps on made-up sentences, a line each
    python examples/encoders.py --recipe mxfp8

`tests/examples/test_encoders.py` trains them under every recipe and compares their gradients with torch.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from options import RECIPES

import nvfp as nf

IGNORED = -100  # a target that does not count


class Bert(nf.nn.Module):
    """Fill in hidden words from both sides: ids [B, L] -> logits [B, L, V].

    Args:
        words: V.
        length: most words of a sentence.
        layers: encoder layers.
        hidden: H.
        heads: attention heads.
        options: of every part (``dtype``, ``device``, ``rng``).
    """

    def __init__(self, words: int, length: int, layers: int, hidden: int, heads: int, **options: Any) -> None:
        super().__init__()
        place = {key: options[key] for key in ("dtype", "device") if key in options}
        self.words = nf.nn.Embedding(words, hidden, **options)
        self.places = nf.nn.Embedding(length, hidden, **options)
        self.layers = nf.nn.Sequential(
            *(
                nf.nn.TransformerLayer(
                    hidden, 4 * hidden, heads, self_attn_mask_type="padding", hidden_dropout=0.0,
                    attention_dropout=0.0, **options,
                )
                for _ in range(layers)
            )
        )  # fmt: skip
        self.norm = nf.nn.LayerNorm(hidden, **place)
        self.head = nf.nn.Linear(hidden, words, **options)

    def forward(self, ids: nf.Array, padding: nf.Array) -> nf.Array:
        """Return the logits; ``padding`` is bool [B, L], True where there is no word."""
        places = nf.asarray(np.arange(ids.shape[1], dtype=np.int32)[None], device=ids.device)
        x = self.words(ids) + self.places(places)
        for i in range(len(self.layers)):
            x = self.layers[i](x, padding[:, None, None, :])
        x = self.norm(x)
        with nf.autocast(enabled=False):
            return self.head(x)


class RelativeBias(nf.nn.Module):
    """What is added to the scores for the distance of key and query: [1, H, Lq, Lk], learned by bucket as in T5.

    Args:
        heads: H.
        buckets: how many distances are told apart; half of them one by one, the others in growing groups.
        far: from this distance on all are one.
        both: keys lie on both sides of the query.
        options: of the table.
    """

    def __init__(self, heads: int, buckets: int, far: int, *, both: bool, **options: Any) -> None:
        super().__init__()
        self.buckets, self.far, self.both = buckets, far, both
        self.table = nf.nn.Embedding(buckets, heads, **options)

    def forward(self, queries: int, keys: int) -> nf.Array:
        """Return the bias."""
        away = np.arange(queries)[:, None] - np.arange(keys)
        half = self.buckets // 2 if self.both else self.buckets
        distance = np.abs(away) if self.both else np.maximum(away, 0)
        near = half // 2
        grown = near + np.log(np.maximum(distance, 1) / near) / math.log(self.far / near) * (half - near)
        bucket = np.where(distance < near, distance, np.minimum(grown.astype(np.int64), half - 1))
        bucket = bucket + half * (away < 0) if self.both else bucket
        ids = nf.asarray(bucket.astype(np.int32), device=self.table.weight.device)
        return nf.permute_dims(self.table(ids), (2, 0, 1))[None]


class T5(nf.nn.Module):
    """Translate: ids [B, Lk] and what the decoder has said [B, Lq] -> logits [B, Lq, V].

    Args:
        words: V.
        layers: of the encoder, and of the decoder.
        hidden: H.
        heads: attention heads.
        options: of every part (``dtype``, ``device``, ``rng``).
    """

    def __init__(self, words: int, layers: int, hidden: int, heads: int, **options: Any) -> None:
        super().__init__()
        place = {key: options[key] for key in ("dtype", "device") if key in options}
        common: dict[str, Any] = {
            "hidden_dropout": 0.0, "attention_dropout": 0.0, "bias": False, "normalization": "RMSNorm",
            "activation": "geglu", **options,
        }  # fmt: skip
        sizes = (hidden, 4 * hidden, heads)
        self.words = nf.nn.Embedding(words, hidden, **options)
        self.encoder = nf.nn.Sequential(
            *(nf.nn.TransformerLayer(*sizes, self_attn_mask_type="padding", **common) for _ in range(layers))
        )
        self.decoder = nf.nn.Sequential(
            *(
                nf.nn.TransformerLayer(*sizes, layer_type="decoder", enc_dec_attn_mask_type="padding", **common)
                for _ in range(layers)
            )
        )
        self.encoder_bias = RelativeBias(heads, 8, 16, both=True, **options)
        self.decoder_bias = RelativeBias(heads, 8, 16, both=False, **options)
        self.encoder_norm, self.norm = (nf.nn.RMSNorm(hidden, **place) for _ in range(2))
        self.head = nf.nn.Linear(hidden, words, bias=False, **options)

    def forward(self, ids: nf.Array, padding: nf.Array, said: nf.Array) -> nf.Array:
        """Return the logits; ``padding`` is bool [B, Lk], True where the source has no word."""
        hidden = padding[:, None, None, :]
        x, y = self.words(ids), self.words(said)
        bias = self.encoder_bias(ids.shape[1], ids.shape[1])
        for i in range(len(self.encoder)):
            x = self.encoder[i](x, hidden, core_attention_bias_type="post_scale_bias", core_attention_bias=bias)
        x, bias = self.encoder_norm(x), self.decoder_bias(said.shape[1], said.shape[1])
        for i in range(len(self.decoder)):
            y = self.decoder[i](
                y, encoder_output=x, enc_dec_attn_mask=hidden, core_attention_bias_type="post_scale_bias",
                core_attention_bias=bias,
            )  # fmt: skip
        y = self.norm(y)
        with nf.autocast(enabled=False):
            return self.head(y)


def sentences(rng: np.random.Generator, words: int, batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids [B, L] that count up from a random word, and where they have ended (at least half of L counts)."""
    start, count = rng.integers(2, words, (batch, 1)), rng.integers(length // 2, length + 1, (batch, 1))
    ids = 2 + (start + np.arange(length)) % (words - 2)
    padding = np.arange(length) >= count
    return np.where(padding, 0, ids).astype(np.int32), padding


def bert_batch(
    rng: np.random.Generator, words: int, batch: int, length: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Inputs and targets: three of ten words are hidden behind the word 1."""
    ids, padding = sentences(rng, words, batch, length)
    hidden = (rng.random(ids.shape) < 0.3) & ~padding
    return (np.where(hidden, 1, ids).astype(np.int32), padding), np.where(hidden, ids, IGNORED).astype(np.int32)


def t5_batch(
    rng: np.random.Generator, words: int, batch: int, length: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Inputs and targets: the sentence one word on, said word by word."""
    ids, padding = sentences(rng, words, batch, length)
    target = np.where(padding, IGNORED, np.where(ids + 1 < words, ids + 1, 2)).astype(np.int32)[:, : length - 1]
    said = np.concatenate((np.ones((batch, 1), np.int32), np.maximum(target[:, :-1], 0)), axis=1)
    return (ids, padding, said.astype(np.int32)), target


def train(model: nf.nn.Module, make: Any, recipe: Any, steps: int, *, words: int, device: Any) -> list[float]:
    """Train on new sentences at each step; returns the losses."""
    rng, losses = np.random.default_rng(0), []
    optimizer = nf.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        inputs, target = make(rng, words, 8, 12)
        optimizer.zero_grad()
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            logits = model(*(nf.asarray(a, device=device) for a in inputs))
            loss = nf.nn.cross_entropy(logits, nf.asarray(target, device=device))
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def make_models(words: int, device: Any, dtype: Any = nf.bfloat16) -> dict[str, tuple[nf.nn.Module, Any]]:
    """Both models, with what makes their batches."""
    options: dict[str, Any] = {"dtype": dtype, "device": device, "rng": nf.random.default_rng(0, device=device)}
    return {
        "bert": (Bert(words, 12, 1, 32, 2, **options), bert_batch),
        "t5": (T5(words, 1, 32, 2, **options), t5_batch),
    }


def main() -> None:
    """Train both."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--recipe", choices=list(RECIPES), default="fp8")
    p.add_argument("--steps", type=int, default=50)
    args = p.parse_args()
    device = nf.default_device()
    for name, (model, make) in make_models(24, device).items():
        losses = train(model, make, RECIPES[args.recipe], args.steps, words=24, device=device)
        print(f"{name}, {args.recipe}: loss {losses[0]:.3f} -> {np.mean(losses[-5:]):.3f} in {args.steps} steps")


if __name__ == "__main__":
    main()
