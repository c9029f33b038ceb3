"""A Llama- or Qwen-style decoder over the arrays of a checkpoint: its layers and rotary scaling.

Weights are dense or quantized (`nf.QuantizedArray`); activations have one dense dtype. Under a 16-bit one a quantized
weight is read as it is by products of few rows, and is expanded exactly by those of many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import nvfp as nf
from nvfp.arrays.array import wrap
from nvfp.kernels.weight_only_gemm import PackedWeight, prepack, weight_only_gemm
from nvfp.nn.functional.activation import activation
from nvfp.nn.functional.embedding import embedding
from nvfp.nn.functional.rms_norm import rms_norm

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Shape:
    """What ``config.json`` says of the model, under its own names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Mapping[str, Any]
    max_position_embeddings: int
    sliding_window: int | None
    tied: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """Read a configuration; refuse what this program does not do."""
        family, act = config.get("model_type"), config.get("hidden_act", "silu")
        if family not in FAMILIES or act != "silu":
            raise SystemExit(
                f"model_type {family} with {act} is not built here; these are: {', '.join(FAMILIES)} (silu)"
            )
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        windowed = config.get("use_sliding_window", family == "mistral")
        return cls(
            hidden, config["num_hidden_layers"], heads, config.get("num_key_value_heads") or heads,
            config.get("head_dim") or hidden // heads, config.get("rms_norm_eps", 1e-6), rope_of(config),
            config.get("max_position_embeddings", 2048), config.get("sliding_window") if windowed else None,
            bool(config.get("tie_word_embeddings", False)),
        )  # fmt: skip


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings, from the names of transformers 4 and 5."""
    found = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    found.setdefault("rope_type", found.pop("type", "default"))
    found.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    found.setdefault("original_max_position_embeddings", config.get("max_position_embeddings", 2048))
    if found.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise SystemExit("partial_rotary_factor is not built here")
    return found


def frequencies(rope: Mapping[str, Any], dim: int) -> tuple[np.ndarray, float]:
    """Angles per position [D / 2], and the factor of the cosines and sines.

    ``linear``: every angle divided by the factor. ``llama3``: long wavelengths divided, short ones kept, a ramp in
    between. ``yarn``: the same by the number of turns in the trained length, and a factor that grows with log(factor).
    Sources: arXiv 2306.15595 (linear), Llama 3.1, arXiv 2309.00071 (YaRN).
    """
    kind, theta, factor = rope["rope_type"], float(rope["rope_theta"]), float(rope.get("factor") or 1.0)
    plain = 1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    trained = float(rope["original_max_position_embeddings"])
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        turns = trained * plain / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return (1 - kept) * plain / factor + kept * plain, 1.0
    if kind == "yarn":
        bounds = [
            dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1)
        ]
        if rope.get("truncate", True):
            bounds = [math.floor(bounds[0]), math.ceil(bounds[1])]
        first, last = max(bounds[0], 0), min(bounds[1], dim - 1)
        ramp = np.clip((np.arange(dim // 2) - first) / (last - first or 0.001), 0, 1)
        return ramp * plain / factor + (1 - ramp) * plain, _yarn_factor(rope, factor)
    raise SystemExit(f"rope_type {kind} is not built here; default, linear, llama3 and yarn are")


def _yarn_factor(rope: Mapping[str, Any], factor: float) -> float:
    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    over, under = rope.get("mscale"), rope.get("mscale_all_dim")
    return grown(over) / grown(under) if over and under else grown(1)


@dataclass
class Matrix:
    """A weight [N, K], perhaps in the order of the kernel that reads narrow weights for few rows, and its bias."""

    weight: nf.Array | PackedWeight
    bias: nf.Array | None = None

    def __call__(self, x: nf.Array) -> nf.Array:
        """Return ``x W^T + b`` in the dtype of x."""
        if isinstance(self.weight, PackedWeight):
            flat = x.reshape((-1, x.shape[-1]))
            y = weight_only_gemm(flat.raw, self.weight, bias=None if self.bias is None else self.bias.raw)
            return wrap(y).reshape((*x.shape[:-1], -1))
        y = nf.matmul(x, self.weight.T)
        return y if self.bias is None else y + self.bias

    @property
    def nbytes(self) -> int:
        """Bytes of a packed weight; a plain one is counted where it is kept."""
        return self.weight.nbytes if isinstance(self.weight, PackedWeight) else 0


@dataclass(frozen=True, eq=False)
class Layer:
    """What a cache knows a layer by."""

    layer_number: int


class Llama:
    """The decoder.

    Args:
        config: content of ``config.json``.
        arrays: name -> Array, under the names of transformers.
        dtype: of activations; dense weights are cast to it.
    """

    def __init__(self, config: Mapping[str, Any], arrays: Mapping[str, nf.Array], dtype: Any = nf.bfloat16) -> None:
        self.shape, self.dtype = Shape.of(config), np.dtype(getattr(nf, dtype) if isinstance(dtype, str) else dtype)
        self.arrays = {name: self._cast(array) for name, array in arrays.items() if not name.endswith("input_scale")}
        self.matrices: dict[str, Matrix] = {}
        self._angles: dict[int, nf.Array] = {}
        table = self.arrays["model.embed_tokens.weight"]
        self.table = table.astype(dtype) if isinstance(table, nf.QuantizedArray) else table
        self.layers = [Layer(i) for i in range(self.shape.num_hidden_layers)]
        self.inverse, self.rope_factor = frequencies(self.shape.rope, self.shape.head_dim)

    def _cast(self, array: nf.Array) -> nf.Array:
        return array if isinstance(array, nf.QuantizedArray) else array.astype(self.dtype, copy=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, scales included."""
        return sum(int(kept.nbytes) for kept in (*self.arrays.values(), *self.matrices.values()))

    def matrix(self, name: str) -> Matrix:
        """The weight of a module and its bias, where it has one; quantized weights are packed at first use."""
        if name not in self.matrices:
            weight = self.arrays[f"{name}.weight"]
            if isinstance(weight, nf.QuantizedArray) and self.dtype in (nf.bfloat16, nf.float16):
                del self.arrays[f"{name}.weight"]
                weight = prepack(weight.operand)
            self.matrices[name] = Matrix(weight, self.arrays.get(f"{name}.bias"))
        return self.matrices[name]

    def cache(self, length: int, batch: int = 1) -> nf.nn.InferenceParams:
        """Room for keys and values of ``length`` tokens of each sequence."""
        s = self.shape
        options: dict[str, Any] = {"dtype": self.dtype, "device": self.table.device}
        return nf.nn.InferenceParams(batch, length, s.num_key_value_heads, s.head_dim, **options)

    def cache_bytes(self, length: int) -> int:
        """Bytes of keys and values of ``length`` tokens in all layers."""
        s = self.shape
        return 2 * s.num_hidden_layers * s.num_key_value_heads * s.head_dim * np.dtype(self.dtype).itemsize * length

    def angles(self, length: int) -> nf.Array:
        """Rotary angles [length, D] of the first positions; made once per length."""
        if length not in self._angles:
            positions = np.arange(length, dtype=np.float32)[:, None]
            table = np.tile(positions * self.inverse, 2).astype(np.float32)
            self._angles = {length: nf.asarray(table, device=self.table.device)}
        return self._angles[length]

    def __call__(self, ids: nf.Array, cache: nf.nn.InferenceParams) -> nf.Array:
        """Return the logits [B, L, V] of tokens ids [B, L], which `pre_step` of the cache has announced."""
        x = embedding(self.table, ids)
        for i, layer in enumerate(self.layers):
            x = x + self._attention(layer, self._norm(f"model.layers.{i}.input_layernorm", x), cache)
            x = x + self._mlp(i, self._norm(f"model.layers.{i}.post_attention_layernorm", x))
        x = self._norm("model.norm", x)
        tied = self.shape.tied or "lm_head.weight" not in self.arrays
        return nf.matmul(x, self.table.T) if tied else self.matrix("lm_head")(x)

    def _norm(self, name: str, x: nf.Array) -> nf.Array:
        return rms_norm(x, self.arrays[f"{name}.weight"], eps=self.shape.rms_norm_eps)

    def _attention(self, layer: Layer, x: nf.Array, cache: nf.nn.InferenceParams) -> nf.Array:
        s, name = self.shape, f"model.layers.{layer.layer_number}.self_attn"
        q, k, v = (
            self.matrix(f"{name}.{part}_proj")(x).reshape((*x.shape[:-1], heads, s.head_dim))
            for part, heads in (
                ("q", s.num_attention_heads),
                ("k", s.num_key_value_heads),
                ("v", s.num_key_value_heads),
            )
        )
        if f"{name}.q_norm.weight" in self.arrays:  # Qwen3
            q, k = self._norm(f"{name}.q_norm", q), self._norm(f"{name}.k_norm", k)
        angles = self.angles(cache.max_sequence_length)
        q, k = cache.rotate(q, k, angles, angles)
        scale = s.head_dim**-0.5 * self.rope_factor**2  # YaRN's factor of cosines and sines, on both sides of q k^T
        window = None if s.sliding_window is None else (s.sliding_window - 1, 0)
        y = cache.attend(layer, q, k, v, softmax_scale=scale, window_size=window)
        return self.matrix(f"{name}.o_proj")(y.reshape((*x.shape[:-1], -1)))

    def _mlp(self, layer: int, x: nf.Array) -> nf.Array:
        gate, up, down = (self.matrix(f"model.layers.{layer}.mlp.{part}_proj") for part in ("gate", "up", "down"))
        return down(activation(gate(x), "silu") * up(x))
