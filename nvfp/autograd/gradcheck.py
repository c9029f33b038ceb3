"""Gradients against finite differences in float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from nvfp.autograd.functional import vjp
from nvfp.errors import GradientError, message


def _random_like(x: Any, rng: random.Random) -> Any:
    size = 1
    for n in x.shape:
        size *= n
    xp = x.__array_namespace__()
    values = xp.asarray(
        [rng.choice((-1.0, 1.0)) * rng.uniform(0.5, 1.0) for _ in range(size)], dtype=x.dtype, device=x.device
    )
    return xp.reshape(values, x.shape)


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    *,
    order: int = 1,
    step: float = 1e-5,
    rtol: float = 1e-6,
    atol: float = 1e-7,
    seed: int = 0,
) -> None:
    """Raise unless ``f``'s gradients agree with central differences.

    One number per argument is compared: the derivative of ``sum(f(...) * u)`` along ``v``, with
    random ``u`` and ``v`` whose entries have magnitudes 0.5 to 1. A wrong entry of the Jacobian
    changes it with probability one, and the cost is two evaluations.

    Args:
        f: a smooth function of float64 arrays that returns an array.
        args: float64 arrays, away from kinks by more than ``step``.
        order: highest order of derivative to check; above 1 the gradient itself is checked.
        step: distance of the differences.
        rtol: relative tolerance of the comparison.
        atol: absolute tolerance.
        seed: of the directions.

    Raises:
        GradientError: a derivative differs; the message names argument and order.

    Example:
        >>> import nvfp as nf
        >>> check_grads(nf.sin, [nf.asarray([0.3, 0.4], dtype=nf.float64, device="cpu")], order=2)
    """
    _check(f, list(args), order, 1, step, rtol, atol, random.Random(seed))


def _check(
    f: Callable[..., Any],
    args: list[Any],
    orders: int,
    order: int,
    step: float,
    rtol: float,
    atol: float,
    rng: random.Random,
) -> None:
    xp = args[0].__array_namespace__()
    out, pull = vjp(f, *args)
    u = _random_like(out, rng)
    gradients = pull(u)
    for i, (x, gradient) in enumerate(zip(args, gradients, strict=True)):
        v = _random_like(x, rng)
        up, down = x + v * step, x - v * step
        ahead, behind = f(*args[:i], up, *args[i + 1 :]), f(*args[:i], down, *args[i + 1 :])
        numeric = float(xp.sum((ahead - behind) * u)) / (2 * step)
        exact = float(xp.sum(gradient * v))
        if not abs(numeric - exact) <= atol + rtol * max(abs(numeric), abs(exact)):
            text = f"{exact!r} along a random direction of argument {i}, order {order}"
            name = getattr(f, "__name__", "f")
            raise GradientError(
                message("check_grads", f"{numeric!r} from finite differences", text, f"correct the rule of {name}")
            )
    if order < orders:

        def first(*inner: Any) -> Any:
            back = vjp(f, *inner)[1](u)
            return sum(
                (xp.sum(g * w) for g, w in zip(back, weights, strict=True)),
                xp.zeros((), dtype=out.dtype, device=out.device),
            )

        weights = [_random_like(x, rng) for x in args]
        _check(first, args, orders, order + 1, step, rtol, atol, rng)
