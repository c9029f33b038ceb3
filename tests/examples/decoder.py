"""A Llama-style decoder in float64, by its formulas, a token at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def inverse_frequencies(rope: Mapping[str, Any], dim: int) -> tuple[list[float], float]:
    """Angle per position of every pair, one by one, and the factor of cosines and sines."""
    theta, factor = rope["rope_theta"], rope.get("factor", 1.0)
    trained = rope.get("original_max_position_embeddings", 0)
    found, grown = [], 1.0
    for pair in range(dim // 2):
        f = theta ** (-2 * pair / dim)
        wavelength = 2 * math.pi / f
        if rope["rope_type"] == "linear":
            f /= factor
        elif rope["rope_type"] == "llama3":
            if wavelength > trained / rope["low_freq_factor"]:
                f /= factor
            elif wavelength > trained / rope["high_freq_factor"]:
                span = rope["high_freq_factor"] - rope["low_freq_factor"]
                smooth = (trained / wavelength - rope["low_freq_factor"]) / span
                f = (1 - smooth) * f / factor + smooth * f
        elif rope["rope_type"] == "yarn":
            edge = [dim * math.log(trained / (t * 2 * math.pi)) / (2 * math.log(theta)) for t in (32, 1)]
            first, last = max(math.floor(edge[0]), 0), min(math.ceil(edge[1]), dim - 1)
            ramp = min(1, max(0, (pair - first) / (last - first)))
            f = ramp * f / factor + (1 - ramp) * f
            grown = 0.1 * math.log(factor) + 1
        found.append(f)
    return found, grown


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight)


def logits(config: Mapping[str, Any], weights: Mapping[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Logits [L, V] after each token."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    dim, eps = config.get("head_dim") or config["hidden_size"] // heads, config["rms_norm_eps"]
    inverse, grown = inverse_frequencies(config["rope_parameters"], dim)
    angles = np.arange(len(ids))[:, None] * np.array(inverse)
    cos, sin = grown * np.cos(angles), grown * np.sin(angles)

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return np.asarray(x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0))

    def turned(x: np.ndarray) -> np.ndarray:
        a, b = x[:, : dim // 2], x[:, dim // 2 :]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        h = _norm(x, w[f"{name}.input_layernorm.weight"], eps)
        parts = {p: linear(f"{name}.self_attn.{p}_proj", h).reshape(len(ids), -1, dim) for p in "qkv"}
        for p in "qk":
            if f"{name}.self_attn.{p}_norm.weight" in w:
                parts[p] = _norm(parts[p], w[f"{name}.self_attn.{p}_norm.weight"], eps)
        seen = []
        for head in range(heads):
            q, k = turned(parts["q"][:, head]), turned(parts["k"][:, head * groups // heads])
            score = q @ k.T / math.sqrt(dim)
            score[np.triu_indices(len(ids), 1)] = -np.inf
            score[np.tril_indices(len(ids), -(config.get("sliding_window") or len(ids)))] = -np.inf
            p = np.exp(score - score.max(-1, keepdims=True))
            seen.append(p / p.sum(-1, keepdims=True) @ parts["v"][:, head * groups // heads])
        x = x + linear(f"{name}.self_attn.o_proj", np.concatenate(seen, -1))
        h = _norm(x, w[f"{name}.post_attention_layernorm.weight"], eps)
        gate = linear(f"{name}.mlp.gate_proj", h)
        x = x + linear(f"{name}.mlp.down_proj", gate / (1 + np.exp(-gate)) * linear(f"{name}.mlp.up_proj", h))
    x = _norm(x, w["model.norm.weight"], eps)
    return np.asarray(x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T)
