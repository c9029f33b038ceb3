"""The two byte-level language models of the example: a GPT and a small MLP.

Both leave their output layer in the parameters' dtype under every recipe, as is usual: the gradient of
softmax sums to zero over the vocabulary, and rounding it to two mantissa bits breaks that sum, so that
logits drift.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nvfp as nf


def normal(std: float) -> Any:
    """An ``init_method``: normal with this standard deviation."""

    def init(shape: tuple[int, ...], rng: Any, dtype: Any, device: Any) -> nf.Array:
        return rng.normal(0.0, std, size=shape, dtype=dtype, device=device)

    return init


class ByteGPT(nf.nn.Module):
    """Predict every next byte of a window from those before it, with Transformer layers.

    ids [B, L] -> embedding [B, L, H] -> layers x (attention, MLP; pre-norm) -> norm -> logits [B, L, 256].
    Positions enter by rotary embedding inside the attention.
    """

    def __init__(
        self, context: int, layers: int, hidden: int, heads: int, dropout: float, *, dtype: Any, device: Any, rng: Any
    ) -> None:
        super().__init__()
        options = {"dtype": dtype, "device": device, "rng": rng}
        self.context = context
        self.embedding = nf.nn.Embedding(256, hidden, **options)
        self.layers = nf.nn.Sequential(
            *(
                nf.nn.TransformerLayer(
                    hidden,
                    4 * hidden,
                    heads,
                    hidden_dropout=dropout,
                    attention_dropout=dropout,
                    init_method=normal(0.02),
                    output_layer_init_method=normal(0.02 / math.sqrt(2 * layers)),  # sums over layers stay small
                    **options,
                )
                for _ in range(layers)
            )
        )
        self.norm = nf.nn.LayerNorm(hidden, dtype=dtype, device=device)
        self.head = nf.nn.Linear(hidden, 256, init_method=normal(0.02), **options)
        self.rotary = nf.nn.RotaryPositionEmbedding(hidden // heads, device=device)

    def forward(self, ids: nf.Array) -> nf.Array:
        """Return logits [B, L, 256]."""
        x, angles = self.embedding(ids), self.rotary(self.context)
        for i in range(len(self.layers)):
            x = self.layers[i](x, rotary_pos_emb=angles)
        x = self.norm(x)
        with nf.autocast(enabled=False):  # see the top of this file
            return self.head(x)

    def targets(self, windows: np.ndarray) -> np.ndarray:
        """What a window [B, L + 1] has it predict: [B, L]."""
        return windows[:, 1:]

    def quantized_weights(self) -> list[nf.Array]:
        """The weights that a recipe's GEMMs read as codes."""
        return [p for p in self.layers.parameters().values() if p.ndim == 2]

    def next_logits(self, text: list[int], device: Any) -> np.ndarray:
        """Logits [256] of the byte after ``text``; the window's unused end is not seen by causal attention."""
        seen = text[-self.context :]
        ids = seen + [10] * (self.context - len(seen))
        return np.asarray(self(nf.asarray(np.asarray([ids], np.int32), device=device))[0, len(seen) - 1], np.float64)


class ByteMLP(nf.nn.Module):
    """Predict the next byte from the last C: embedding, two hidden GELU layers, logits.

    ids [B, C] -> [B, C, E] -> [B, C E] -> [B, H] -> [B, H] -> logits [B, 256].
    """

    def __init__(self, context: int, embedding: int, hidden: int, *, dtype: Any, device: Any, rng: Any) -> None:
        super().__init__()
        options = {"dtype": dtype, "device": device, "rng": rng}
        self.context = context
        self.embedding = nf.nn.Embedding(256, embedding, **options)
        wide = context * embedding
        self.fc1 = nf.nn.Linear(wide, hidden, init_method=normal(wide**-0.5), **options)
        self.fc2 = nf.nn.Linear(hidden, hidden, init_method=normal(hidden**-0.5), **options)
        self.head = nf.nn.Linear(hidden, 256, init_method=normal(hidden**-0.5), **options)
        self.act = nf.nn.GELU()

    def forward(self, ids: nf.Array) -> nf.Array:
        """Return logits [B, 256]."""
        x = self.embedding(ids)
        x = self.act(self.fc1(x.reshape((ids.shape[0], -1))))
        x = self.act(self.fc2(x))
        with nf.autocast(enabled=False):  # see the top of this file
            return self.head(x)

    def targets(self, windows: np.ndarray) -> np.ndarray:
        """What a window [B, C + 1] has it predict: [B]."""
        return windows[:, -1]

    def quantized_weights(self) -> list[nf.Array]:
        """The weights that a recipe's GEMMs read as codes."""
        return [self.fc1.weight, self.fc2.weight]

    def next_logits(self, text: list[int], device: Any) -> np.ndarray:
        """Logits [256] of the byte after ``text``, filled up with line ends in front."""
        ids = ([10] * self.context + text)[-self.context :]
        return np.asarray(self(nf.asarray(np.asarray([ids], np.int32), device=device))[0], np.float64)


def make_model(options: Any, device: Any, rng: Any) -> ByteGPT | ByteMLP:
    """Build the model that the command line asks for, in bfloat16."""
    where = {"dtype": nf.bfloat16, "device": device, "rng": rng}
    o = options
    if o.model == "mlp":
        return ByteMLP(o.context, o.embedding, o.hidden, **where)
    return ByteGPT(o.context, o.layers, o.hidden, o.heads, o.dropout, **where)
