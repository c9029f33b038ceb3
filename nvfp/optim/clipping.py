"""`clip_grad_norm`: gradients made no longer than a bound, together, without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.creation import empty_raw
from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.kernels._dispatch import place_like
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.multi_tensor import l2_norm, scale_tensors
from nvfp.optim._base import gradient, number, plain, word

_OP = "clip_grad_norm"
_F32 = np.dtype(np.float32)


def clip_grad_norm(
    params: Mapping[str, Array], max_norm: float, *, eps: float = 1e-6, nonfinite: Array | None = None
) -> Array:
    """Scale all gradients by ``min(1, max_norm / (norm + eps))``, in place, and return their norm.

    ``norm`` is the Euclidean norm of the gradients of all parameters together, ``main_grad`` where there is one.

    Args:
        params: name -> parameter, as ``model.parameters()``; those without a gradient have no part. One with several
            names counts once.
        max_norm: greatest norm, at least 0; infinity measures only.
        eps: keeps the quotient finite.
        nonfinite: float32 Array of shape () that becomes 1 if a gradient holds a NaN or an infinity, else 0: what
            ``optimizer.step(skip=)`` takes.

    Returns:
        float32 Array of shape (): the norm before clipping, on the device; reading it waits for the GPU, nothing else.

    Raises:
        DTypeError: no mapping of parameters, a gradient that is not float32, bfloat16 or float16, or a ``nonfinite``
            that is no float32 Array of shape ().
        ArgumentError: a bound that is negative or NaN, or gradients on several devices.
        StateError: a gradient waits for ``backward_dw``.

    Numerics: the norm as `kernels.multi_tensor.l2_norm`; the factor in float32; each gradient is multiplied in float32
        and rounded once, also where the factor is 1 (which changes no bit). A norm that is NaN or infinite makes every
        gradient NaN or 0: see the optimizers' skipping. CPU and CUDA give the same bits for one norm.

    Source: torch's ``clip_grad_norm_``; Pascanu et al. (2013).

    Example:
        >>> import nvfp as nf
        >>> w = nf.parameter(nf.asarray([3.0, 4.0], device="cpu"))
        >>> (w * w).sum().backward()
        >>> float(nf.optim.clip_grad_norm({"w": w}, 5.0)), nf.round(w.grad).tolist()
        (10.0, [3.0, 4.0])
    """
    if not isinstance(params, Mapping) or not all(isinstance(p, Array) for p in params.values()):
        raise DTypeError(message(_OP, "a mapping name -> parameter", type(params).__name__, "pass model.parameters()"))
    if max_norm != float("inf"):
        max_norm = number(_OP, "max_norm", max_norm, 0.0)
    eps = number(_OP, "eps", eps, 0.0)
    flag = None if nonfinite is None else word(_OP, "nonfinite", nonfinite)
    held = [p for name, p in {id(p): (name, p) for name, p in params.items()}.values() if _has_gradient(name, p)]
    if not held:
        _clear(nonfinite)
        like = next(iter(params.values()), None)
        return wrap(np.zeros((), _F32) if like is None else place_like(np.zeros((), _F32), plain(like)))
    if len({p.device for p in (*held, *(() if nonfinite is None else (nonfinite,)))}) > 1:
        raise ArgumentError(message(_OP, "gradients on one device", "several", "clip them device by device"))
    measures = max_norm == float("inf") and flag is None
    raws = [_gradient_of(p).raw if measures else _writable(p).raw for p in held]
    norm = l2_norm(raws)
    _clear(nonfinite)  # nothing raises from here on
    if not measures:
        once = list({id(raw): raw for raw in raws}.values())  # parameters may share a main_grad
        scale_tensors(once, _factor(norm, max_norm, eps), outs=once, nonfinite=flag)
        for p in held:
            _gradient_of(p).storage.touch()
    return wrap(norm)


def _clear(flag: Array | None) -> None:
    if flag is not None:
        elementwise("copy", 0.0, dtype=_F32, out=flag.raw)
        flag.storage.touch()


def _factor(norm: Any, max_norm: float, eps: float) -> Any:
    """What gradients are multiplied by; 1 without a bound, whatever the norm (inf / inf is none)."""
    if max_norm == float("inf"):
        return elementwise("copy", 1.0, dtype=_F32, out=empty_raw((), _F32, wrap(norm).device))
    bound = elementwise("divide", max_norm, elementwise("add", norm, eps, dtype=_F32), dtype=_F32)
    return elementwise("minimum", bound, 1.0, dtype=_F32)


def _has_gradient(name: str, p: Array) -> bool:
    return gradient(_OP, name, p) is not None


def _gradient_of(p: Array) -> Any:
    return p.grad if p.main_grad is None else p.main_grad


def _writable(p: Array) -> Any:
    """The gradient of a parameter, in memory that nobody else shows."""
    g = _gradient_of(p)
    if g is p.main_grad or (getattr(p._node, "owned", False) and g.raw.flags.c_contiguous):
        return g
    p.grad = g._own()
    return p.grad
