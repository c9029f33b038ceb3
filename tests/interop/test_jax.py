"""nvfp functions in jax: jitted, nested results, mapped, differentiated by a rule; errors by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from tests.devices import need_oracle

jax = need_oracle("jax")
pytestmark = pytest.mark.oracle
bridge = nf.interop.jax
jnp = jax.numpy


def values(shape: tuple[int, ...] = (4, 64), dtype: Any = "float32") -> Any:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("jit", [False, True])
def test_quantize_inside_a_jitted_function(dtype: str, jit: bool) -> None:
    def rounded(x: Any) -> Any:
        return bridge.call(lambda a: nf.fake_quant(a, nf.mxfp8), x, x) + 1

    x = values(dtype=dtype)
    found = (jax.jit(rounded) if jit else rounded)(x)
    expected = nf.fake_quant(nf.from_dlpack(x), nf.mxfp8)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(jnp.asarray(np.asarray(expected)) + 1))


def test_codes_and_scales_come_back_nested() -> None:
    x = values()

    def parts(a: Any) -> dict[str, Any]:
        q = a.astype(nf.mxfp8)
        return {"codes": q.codes, "scale": q.scale}

    wanted = {
        "codes": jax.ShapeDtypeStruct((4, 64), jnp.float8_e4m3fn),
        "scale": jax.ShapeDtypeStruct((4, 2), jnp.float8_e8m0fnu),
    }
    found = jax.jit(lambda x: bridge.call(parts, wanted, x))(x)
    q = nf.from_dlpack(x).astype(nf.mxfp8)
    back = nf.QuantizedArray.from_parts(found["codes"], found["scale"], nf.mxfp8)
    assert nf.array_equal(back, q)


def test_several_arguments_and_vmap() -> None:
    a, b = values((3, 4, 32)), values((3, 32, 8))
    product = jax.vmap(
        lambda a, b: bridge.call(nf.matmul, jax.ShapeDtypeStruct((4, 8), a.dtype), a, b, vmap_method="sequential")
    )
    np.testing.assert_allclose(product(a, b), np.asarray(a) @ np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda a: a[:1], r"\[jax\.call\] expected a result of shape \(4, 64\)"),
        (lambda a: a.astype(nf.float64), r"\[jax\.call\] expected a result of dtype float32"),
        (lambda a: 1.0, r"\[jax\.call\] expected a function that returns Arrays"),
    ],
)
def test_wrong_results_are_named(function: Any, words: str) -> None:
    x = values()
    with pytest.raises(Exception, match=words):
        jax.block_until_ready(bridge.call(function, x, x))
