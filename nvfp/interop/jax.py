"""nvfp functions inside jitted jax functions: `call`. Importing this imports jax.

Outside of ``jax.jit`` nothing is needed: ``nf.from_dlpack(a)`` and ``jax.numpy.from_dlpack(x)`` exchange arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.convert import asarray, asnumpy
from nvfp.errors import DTypeError, ShapeError, message
from nvfp.optional import need

jax: Any = need("jax", extra="jax")


def call(
    function: Callable[..., Any], result: Any, *args: Any, device: Any = "cpu", vmap_method: str | None = None
) -> Any:
    """Call a function of nvfp Arrays from jax code, jitted or not, through `jax.pure_callback`.

    jax may call it any number of times, so it must not depend on anything but its arguments. It has no gradient in
    jax; give one with ``jax.custom_vjp`` (examples/jax_bridge.py does).

    Args:
        function: ``function(*Arrays) -> Array``, or a nested tuple, list or dict of Arrays. Quantized results are
            dequantized.
        result: ``jax.ShapeDtypeStruct`` (or an array) of what comes back, nested in the same way.
        args: jax arrays.
        device: where ``function`` gets its arguments. jax hands them over on the host.
        vmap_method: as in `jax.pure_callback`.

    Returns:
        jax arrays like ``result``.

    Raises:
        ShapeError: ``function`` returns another shape than ``result`` says; jax shows it as its own runtime error.
        DTypeError: likewise for the dtype, or a result that is no Array.

    Example:
        >>> import jax, jax.numpy as jnp, nvfp as nf
        >>> x = jnp.linspace(-1, 1, 32)
        >>> rounded = jax.jit(lambda x: nf.interop.jax.call(lambda a: nf.fake_quant(a, nf.nvfp4), x, x))
        >>> nf.array_equal(nf.from_dlpack(rounded(x)), nf.fake_quant(nf.from_dlpack(x), nf.nvfp4))
        True
    """
    shapes = jax.tree.map(lambda r: jax.ShapeDtypeStruct(r.shape, r.dtype), result)

    def on_host(*values: Any) -> Any:
        arrays = [asarray(np.asarray(v), device=device) for v in values]
        return jax.tree.map(_checked, shapes, function(*arrays))

    return jax.pure_callback(on_host, shapes, *args, vmap_method=vmap_method)


def _checked(wanted: Any, value: Any) -> np.ndarray:
    if not isinstance(value, Array):
        raise DTypeError(message("jax.call", "a function that returns Arrays", type(value).__name__, "return an Array"))
    found = asnumpy(value)
    if found.shape != wanted.shape:
        raise ShapeError(message("jax.call", f"a result of shape {wanted.shape}", found.shape, "correct result="))
    if found.dtype != wanted.dtype:
        raise DTypeError(message("jax.call", f"a result of dtype {wanted.dtype}", found.dtype, "cast it, or say so"))
    return found
