"""A Transformer layer in float64, written with the `autograd` package: another model than nvfp's, with its own tape.

Parameters are dicts with the names that the modules of `nf.nn` have.
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd import make_vjp

Params = dict[str, Any]


def norm(x: Any, weight: Any, bias: Any, *, rms: bool = False, zero_centered: bool = False, eps: float = 1e-5) -> Any:
    """LayerNorm or RMSNorm over the last axis."""
    gamma = weight + 1 if zero_centered else weight
    if not rms:
        x = x - anp.mean(x, axis=-1, keepdims=True)
    y = x / anp.sqrt(anp.mean(x * x, axis=-1, keepdims=True) + eps) * gamma
    return y if bias is None else y + bias


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + anp.exp(-x))


PLAIN = {
    "gelu": lambda x: 0.5 * x * (1 + anp.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
    "relu": lambda x: anp.maximum(x, 0.0),
    "silu": lambda x: x * sigmoid(x),
    "qgelu": lambda x: x * sigmoid(1.702 * x),
    "srelu": lambda x: anp.maximum(x, 0.0) ** 2,
}
GATED = {"glu": sigmoid, "geglu": PLAIN["gelu"], "qgeglu": PLAIN["qgelu"], "reglu": PLAIN["relu"]}
GATED |= {"sreglu": PLAIN["srelu"], "swiglu": PLAIN["silu"]}


def activation(x: Any, kind: str, clamp: tuple[float, float, float] = (7.0, 1.702, 1.0)) -> Any:
    """A plain activation, or act(first half) * second half; ``clamp``: limit, alpha and offset of clamped_swiglu."""
    if kind in PLAIN:
        return PLAIN[kind](x)
    half = x.shape[-1] // 2
    if kind == "clamped_swiglu":
        limit, alpha, offset = clamp
        gate = anp.minimum(x[..., :half], limit)
        return gate * sigmoid(alpha * gate) * (anp.clip(x[..., half:], -limit, limit) + offset)
    return GATED[kind](x[..., :half]) * x[..., half:]


def linear(x: Any, p: Params, name: str = "") -> Any:
    """x W^T + b of the parameters ``<name>weight`` and ``<name>bias``."""
    y = x @ p[f"{name}weight"].T
    return y + p[f"{name}bias"] if f"{name}bias" in p else y


def part(p: Params, prefix: str) -> Params:
    """The parameters below a prefix."""
    return {k.removeprefix(prefix): v for k, v in p.items() if k.startswith(prefix)}


def mlp(x: Any, p: Params, *, kind: str = "gelu", clamp: Any = (7.0, 1.702, 1.0), **options: Any) -> tuple[Any, Any]:
    """LayerNormMLP: its output and that of its norm."""
    normed = norm(x, p["layer_norm_weight"], p.get("layer_norm_bias"), **options)
    return linear(activation(linear(normed, p, "fc1_"), kind, clamp), p, "fc2_"), normed


def rotate(x: Any, *, base: float = 10000.0, interleaved: bool = False) -> Any:
    """Rotary embedding of [B, L, H, D] over the whole head."""
    length, dim = x.shape[1], x.shape[3]
    angles = np.arange(length)[:, None] * base ** (-np.arange(0, dim, 2) / dim)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        pairs = anp.stack((a * cos - b * sin, b * cos + a * sin), axis=-1)
        return anp.reshape(pairs, x.shape)
    a, b = x[..., : dim // 2], x[..., dim // 2 :]
    return anp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def attend(q: Any, k: Any, v: Any, hidden: Any, bias: Any = 0.0) -> Any:
    """Softmax attention of [B, L, H, D] with G key heads; ``hidden`` is True where a key is not seen."""
    each = q.shape[2] // k.shape[2]
    k, v = (anp.repeat(z, each, axis=2) for z in (k, v))
    scores = anp.einsum("blhd,bmhd->bhlm", q, k) / np.sqrt(q.shape[3]) + bias
    seen = np.broadcast_to(~np.asarray(hidden), scores.shape)
    top = np.max(np.where(seen, _value(scores), -1e300), axis=-1, keepdims=True)
    shifted = anp.where(seen, scores - top, 0.0)
    weights = anp.where(seen, anp.exp(shifted), 0.0)
    total = anp.sum(weights, axis=-1, keepdims=True)
    weights = weights / anp.where(seen.any(-1, keepdims=True), total, 1.0)
    out = anp.einsum("bhlm,bmhd->blhd", weights, v)
    return anp.reshape(out, (*out.shape[:2], -1))


def _value(x: Any) -> Any:
    while hasattr(x, "_value"):
        x = x._value
    return x


def causal(length: int) -> np.ndarray:
    """Top-left causal mask, True = hidden."""
    return np.triu(np.ones((length, length), bool), 1)


def attention(
    x: Any,
    p: Params,
    *,
    heads: int,
    groups: int,
    mask: Any = None,
    rope: bool = False,
    interleaved_rope: bool = False,
    qk_norm: str | None = None,
    qk_eps: float = 1e-6,
    qk_norm_first: bool = False,
    bias: Any = 0.0,
    **options: Any,
) -> tuple[Any, Any]:
    """MultiheadAttention (causal unless a mask is given): its output and that of its norm."""
    name = "layernorm_qkv." if any(k.startswith("layernorm_qkv.") for k in p) else "qkv."
    own, normed = part(p, name), x
    if name == "layernorm_qkv.":
        normed = norm(x, own["layer_norm_weight"], own.get("layer_norm_bias"), **options)
    if "weight" in own:  # fused: per group its queries, its key, its value
        mixed = linear(normed, own)
        mixed = anp.reshape(mixed, (*x.shape[:2], groups, heads // groups + 2, -1))
        q = anp.reshape(mixed[:, :, :, :-2], (*x.shape[:2], heads, mixed.shape[-1]))
        k, v = mixed[:, :, :, -2], mixed[:, :, :, -1]
    else:
        q, k, v = (linear(normed, own, f"{part}_") for part in ("query", "key", "value"))
        q, k, v = (anp.reshape(z, (*x.shape[:2], n, -1)) for z, n in ((q, heads), (k, groups), (v, groups)))

    def normed_heads(z: Any, name: str) -> Any:
        if qk_norm == "L2Normalization":
            return z / anp.sqrt(anp.sum(z * z, axis=-1, keepdims=True) + qk_eps)
        weight, bias = p[f"{name}_norm.weight"], p.get(f"{name}_norm.bias")
        return norm(z, weight, bias, rms=qk_norm == "RMSNorm", eps=qk_eps)

    if qk_norm and qk_norm_first:
        q, k = normed_heads(q, "q"), normed_heads(k, "k")
    if rope:
        q, k = (rotate(z, interleaved=interleaved_rope) for z in (q, k))
    if qk_norm and not qk_norm_first:
        q, k = normed_heads(q, "q"), normed_heads(k, "k")
    hidden = causal(x.shape[1]) if mask is None else mask
    return linear(attend(q, k, v, hidden, bias), p, "proj."), normed


def cross_attention(
    x: Any, memory: Any, p: Params, *, heads: int, groups: int, mask: Any = False, **options: Any
) -> tuple[Any, Any]:
    """MultiheadAttention over ``memory``: its output and that of its norm."""
    name = "layernorm_query." if any(k.startswith("layernorm_query.") for k in p) else "query_layer."
    own, other, normed = part(p, name), part(p, "key_value."), x
    if name == "layernorm_query.":
        normed = norm(x, own["layer_norm_weight"], own.get("layer_norm_bias"), **options)
    q = linear(normed, own, "" if "weight" in own else "query_")
    q = anp.reshape(q, (*x.shape[:2], heads, -1))
    if "weight" in other:  # fused: per group its key, its value
        mixed = anp.reshape(linear(memory, other), (*memory.shape[:2], groups, 2, -1))
        k, v = mixed[:, :, :, 0], mixed[:, :, :, 1]
    else:
        k, v = (anp.reshape(linear(memory, other, f"{z}_"), (*memory.shape[:2], groups, -1)) for z in ("key", "value"))
    hidden = np.broadcast_to(mask, (x.shape[0], heads, x.shape[1], memory.shape[1]))
    return linear(attend(q, k, v, hidden), p, "proj."), normed


def decoder(
    x: Any, memory: Any, p: Params, *, post_norm_residual: bool = False, mask: Any = False, **options: Any
) -> Any:
    """TransformerLayer with cross-attention, without dropout."""
    attended, normed = attention(x, part(p, "self_attention."), **options)
    x = (normed if post_norm_residual else x) + attended
    crossed, normed = cross_attention(x, memory, part(p, "inter_attention."), mask=mask, **options)
    x = (normed if post_norm_residual else x) + crossed
    y, normed = mlp(x, part(p, "layernorm_mlp."))
    return (normed if post_norm_residual else x) + y


def layer(
    x: Any,
    p: Params,
    *,
    kind: str = "gelu",
    post_norm_residual: bool = False,
    parallel: bool = False,
    rms: bool = False,
    zero_centered: bool = False,
    eps: float = 1e-5,
    **options: Any,
) -> Any:
    """TransformerLayer without dropout."""
    norms: dict[str, Any] = {"rms": rms, "zero_centered": zero_centered, "eps": eps}
    attended, normed = attention(x, part(p, "self_attention."), **norms, **options)
    if parallel:
        return x + attended + mlp(x, part(p, "layernorm_mlp."), kind=kind, **norms)[0]
    x = (normed if post_norm_residual and "layernorm.weight" not in p else x) + attended
    y, normed = mlp(x, part(p, "layernorm_mlp."), kind=kind, **norms)
    y = (normed if post_norm_residual else x) + y
    return norm(y, p["layernorm.weight"], p.get("layernorm.bias"), **norms) if "layernorm.weight" in p else y


def values_and_gradients(function: Any, x: np.ndarray, p: Params, dy: np.ndarray) -> tuple[Any, Any, Params]:
    """``y = function(x, p)``, and the gradients of sum(y * dy) for x and for every parameter, in float64."""
    wide = {k: np.asarray(v, np.float64) for k, v in p.items()}
    vjp, y = make_vjp(lambda args: function(*args))((np.asarray(x, np.float64), wide))
    dx, dp = vjp(np.asarray(dy, np.float64))
    return y, dx, dp


def gradient_scale(name: str, gradients: Params) -> float:
    """Size of a gradient; that of a key's bias is 0 (softmax does not see it), so it errs like its neighbour's."""
    neighbour = name.replace("key_bias", "value_bias").replace("k_norm.bias", "q_norm.bias")
    return float(np.abs(gradients[neighbour]).max())
