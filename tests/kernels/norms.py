"""What the tests of `layer_norm` and `rms_norm` share: inputs, one call for both, and the scales in which sums err."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from nvfp.device import Device
from nvfp.kernels import layer_norm as layer_kernel, rms_norm as rms_kernel
from nvfp.kernels.elementwise import elementwise
from tests.devices import to_device, to_numpy
from tests.kernels.dense import F32, bits, normal
from tests.oracles import layer_norm as layer_oracle, rms_norm as rms_oracle
from tests.tolerances import check

# (rows, H): one, odd, vectors of every width, rows of one warp and of a block, rows too long for registers.
SHAPES = (
    (1, 1), (0, 8), (5, 0), (7, 3), (1, 72), (300, 72), (33, 100), (9, 130), (130, 768), (5, 1000), (70, 1023),
    (3, 4096), (2, 12288), (2, 12289), (1, 20_000), (2, 40_000),
)  # fmt: skip
_ROUNDED = 2.0**-24 / 2e-6  # half an ulp of the stored mean, in units of the row's atol
Results = dict[str, np.ndarray]


def draw(
    shape: tuple[int, ...], dtype: np.dtype, parameter: np.dtype, offset: float = 0.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, dy, weight and bias."""
    x = (normal(shape, scale=2.0) + offset).astype(dtype)
    weight, bias = normal(shape[-1:], seed=2) + 1, normal(shape[-1:], seed=3)
    return x, normal(shape, dtype, 1), weight.astype(parameter), bias.astype(parameter)


def call(
    stem: str, twins: Sequence[ModuleType], arrays: Sequence[Any], eps: float = 1e-5, zero: bool = False
) -> Results:
    """Forward and backward of one stem with given arrays (x, dy, weight, bias) of one device.

    Args:
        stem: ``"layer_norm"`` or ``"rms_norm"``.
        twins: the modules that hold them, in this order.
        arrays: raw arrays; bias may be None and is not used by rms_norm.
        eps: added to the variance.
        zero: gamma counts from 1.
    """
    x, dy, weight, bias = arrays
    if stem == "layer_norm":
        y, mean, rstd = twins[0].layer_norm(x, weight, bias, eps=eps, zero_centered_gamma=zero)
        dx, dw, db = twins[0].layer_norm_vjp(dy, x, weight, mean, rstd, zero_centered_gamma=zero)
        found = {"y": y, "mean": mean, "rstd": rstd, "dx": dx, "dweight": dw, "dbias": db}
    else:
        y, rstd = twins[1].rms_norm(x, weight, eps=eps, zero_centered_gamma=zero)
        dx, dw = twins[1].rms_norm_vjp(dy, x, weight, rstd, zero_centered_gamma=zero)
        found = {"y": y, "rstd": rstd, "dx": dx, "dweight": dw}
    return {name: to_numpy(a) for name, a in found.items()}


def run(stem: str, device: Device, arrays: Sequence[Any], **options: Any) -> Results:
    """`call` of the contracts on a device."""
    moved = [None if a is None else to_device(a, device) for a in arrays]
    return call(stem, (layer_kernel, rms_kernel), moved, **options)


def compare(stem: str, found: Results, arrays: Sequence[Any], eps: float = 1e-5, zero: bool = False) -> None:
    """Check everything that `call` returned against float64."""
    x, dy, weight, bias = arrays
    for name, like in {"y": x, "dx": x, "dweight": weight, "dbias": weight}.items():
        assert name not in found or (found[name].shape, found[name].dtype) == (like.shape, like.dtype)
    if not x.size:
        assert not any(found[name].any() for name in ("dweight", "dbias") if name in found)
        return
    wanted, t, lost = _expected(stem, arrays, eps, zero)
    up, gamma = np.abs(dy.astype(np.float64)), np.abs(weight.astype(np.float64) + zero)
    added = 0 if bias is None or stem == "rms_norm" else np.abs(bias.astype(np.float64))
    u, rows = up * gamma, tuple(range(x.ndim - 1))
    inner = u + u.mean(-1, keepdims=True) + (t + lost) * (u * (1 + t)).mean(-1, keepdims=True)
    scales = {
        "y": gamma * (1 + t) + added,
        "mean": np.abs(x.astype(np.float64)).mean(-1).reshape(-1),
        "rstd": 0,
        "dx": wanted["rstd"].reshape((*x.shape[:-1], 1)) * inner,
        "dweight": (up * (1 + t + lost)).sum(rows),
        "dbias": up.sum(rows),
    }
    for name, values in found.items():
        subnormal = 2.0**-25 / 2e-6 if values.dtype == np.float16 else 0.0  # half of what these are apart
        check(values, wanted[name], "norm", scale=scales[name] + subnormal)


def _expected(stem: str, arrays: Sequence[Any], eps: float, zero: bool) -> tuple[Results, np.ndarray, Any]:
    """The right results, |normalised x|, and what the rounded mean costs it (in units of atol)."""
    x, dy, weight, bias = arrays
    options: dict[str, Any] = {"eps": eps, "zero_centered_gamma": zero}
    one = np.ones(x.shape[-1])
    if stem == "rms_norm":
        dx, dw = rms_oracle.rms_norm_vjp(dy, x, weight, **options)
        rstd = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(-1) + eps).reshape(-1)
        wanted = {"y": rms_oracle.rms_norm(x, weight, **options), "rstd": rstd, "dx": dx, "dweight": dw}
        return wanted, np.abs(rms_oracle.rms_norm(x, one, eps=eps)), 0.0
    mean, rstd = layer_oracle.statistics(x, eps)
    dx, dw, db = layer_oracle.layer_norm_vjp(dy, x, weight, **options)
    y = layer_oracle.layer_norm(x, weight, bias, **options)
    wanted = {"y": y, "mean": mean, "rstd": rstd, "dx": dx, "dweight": dw, "dbias": db}
    lost = (np.abs(mean) * rstd * _ROUNDED).reshape((*x.shape[:-1], 1))
    return wanted, np.abs(layer_oracle.layer_norm(x, one, eps=eps)), lost


def check_residual_and_add(stem: str, device: Device, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Residual and add give the bits of the unfused pairs, in place and into strided arrays too."""
    x, dy, weight, bias = (to_device(a, device) for a in draw(shape, dtype, F32))
    r = to_device(normal(shape, dtype, 4), device)
    parameters = (weight, bias) if stem == "layer_norm" else (weight,)
    norm = layer_kernel.layer_norm if stem == "layer_norm" else rms_kernel.rms_norm
    back = layer_kernel.layer_norm_vjp if stem == "layer_norm" else rms_kernel.rms_norm_vjp
    both = elementwise("add", x, r, dtype=dtype)
    wanted = norm(both, *parameters)
    strided = to_device(np.zeros((*shape[::-1], 2), dtype), device)[..., 0].T
    for source, total in ((x, strided), (x, r)):
        found = norm(source, *parameters, residual=r, total=total)
        assert np.array_equal(bits(to_numpy(total)), bits(to_numpy(both)))
        for a, b in zip(found, wanted, strict=True):
            assert np.array_equal(bits(to_numpy(a)), bits(to_numpy(b)))
    plain = back(dy, both, weight, *wanted[1:])
    added = back(dy, both, weight, *wanted[1:], add=x)
    assert np.array_equal(bits(to_numpy(added[0])), bits(to_numpy(elementwise("add", plain[0], x, dtype=dtype))))
    for a, b in zip(added[1:], plain[1:], strict=True):
        assert np.array_equal(to_numpy(a), to_numpy(b))
