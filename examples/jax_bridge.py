"""nvfp in jax: arrays by DLPack, and a quantized linear with its gradient inside a jitted training step. Needs jax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import nvfp as nf

FORMAT = nf.mxfp8


def _forward(x: nf.Array, w: nf.Array) -> nf.Array:
    return nf.matmul(x.astype(FORMAT), w.astype(FORMAT).T, dtype=x.dtype)


def _backward(x: nf.Array, w: nf.Array, dy: nf.Array) -> tuple[nf.Array, nf.Array]:
    """Both products contract another axis than forward, so x, w and dy get blocks along that one."""
    dx = nf.matmul(dy.astype(FORMAT), nf.quantize(w, FORMAT, axis=0), dtype=x.dtype)
    dw = nf.matmul(nf.quantize(dy, FORMAT, axis=0).T, nf.quantize(x, FORMAT, axis=0), dtype=w.dtype)
    return dx, dw


@jax.custom_vjp
def linear(x: jax.Array, w: jax.Array) -> jax.Array:
    """``x w^T`` with MXFP8 operands: nvfp computes it on the host, jax sees one operation."""
    return nf.interop.jax.call(_forward, jax.ShapeDtypeStruct((x.shape[0], w.shape[0]), x.dtype), x, w)


def _saved(x: jax.Array, w: jax.Array) -> tuple[jax.Array, Any]:
    return linear(x, w), (x, w)


def _gradients(saved: Any, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    return tuple(nf.interop.jax.call(_backward, saved, *saved, dy))


linear.defvjp(_saved, _gradients)


def loss(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jnp.tanh(linear(x, params["up"]))
    return jnp.mean((linear(hidden, params["down"]) - y) ** 2)


@jax.jit
def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    value, grads = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), value


def main(steps: int = 60) -> list[float]:
    """Exchange an array, then fit a small function; return the losses."""
    codes = nf.from_dlpack(jnp.linspace(-2, 2, 64, dtype=jnp.bfloat16)).astype(nf.mxfp8).codes
    print("codes of an nvfp array in jax:", jnp.from_dlpack(codes).dtype)

    keys = jax.random.split(jax.random.key(0), 4)
    params = {"up": jax.random.normal(keys[0], (64, 32)) * 0.2, "down": jax.random.normal(keys[1], (32, 64)) * 0.2}
    x = jax.random.normal(keys[2], (128, 32))
    y = jnp.sin(x @ jax.random.normal(keys[3], (32, 32)) * 0.2)
    losses = []
    for _ in range(steps):
        params, value = step(params, x, y)
        losses.append(float(value))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
