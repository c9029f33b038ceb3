"""What the contract of `gemm` checks, and `Tail`: what happens to a product before it is written.

Everything here runs on both devices: where a library cannot do a tail in the product's own kernel, `composed`
does it by the kernels of activation, bias_grad and quantize.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, NotBuiltError, ShapeError, message
from nvfp.kernels._check import FLOAT32, FLOATS, check_choice, check_out, check_word
from nvfp.kernels._dense import COMPUTED
from nvfp.kernels.activation import activation, activation_vjp
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.cast import cast
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize

Epilogue = Literal["gelu", "dgelu"]
Summed = Literal["result", "a", "b"]


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """What happens to ``alpha (a @ b) + bias`` before it is written.

    Attributes:
        epilogue: function, or None.
        aux: the pre-activation: written by ``gelu`` (if it is wanted), read by ``dgelu``.
        out_format: per-tensor FP8 format of the result, or None.
        out_scale: what that result is multiplied by before the cast.
        amax_out: word that becomes the largest magnitude seen, or None.
    """

    epilogue: Epilogue | None
    aux: Any | None
    out_format: QuantDType | None
    out_scale: Any | None
    amax_out: Any | None

    def arrays(self) -> tuple[Any | None, ...]:
        """Return the arrays, for the device check."""
        return self.aux, self.out_scale, self.amax_out


def check_tail(
    shape: tuple[int, ...], dtype: np.dtype, a: Any, b: Any, tail: Tail, aux_out: Any, *, bias: bool, accumulate: bool
) -> None:
    """Raise unless a tail fits a product of ``shape`` whose result has ``dtype`` (float32 before an FP8 cast)."""

    def refuse(wrong: bool, expected: str, got: Any, do: str) -> None:
        if wrong:
            raise ArgumentError(message("gemm", expected, got, do))

    if tail.epilogue is not None:
        check_choice("gemm", "epilogue", tail.epilogue, ("gelu", "dgelu"))
    gelu, dgelu, fp8 = tail.epilogue == "gelu", tail.epilogue == "dgelu", tail.out_format is not None
    refuse(aux_out is not None and not gelu, "aux_out= with epilogue='gelu'", tail.epilogue, "leave it out")
    refuse(dgelu != (tail.aux is not None and not gelu), "aux= with epilogue='dgelu'", tail.epilogue, "pass both")
    refuse(accumulate and (tail.epilogue is not None or fp8), "no accumulate with an epilogue", True, "add afterwards")
    refuse(bias and dgelu, "no bias with epilogue='dgelu'", "a bias", "leave it out")
    refuse(not fp8 and tail.out_scale is not None, "out_scale= with out_format=", None, "name the format")
    refuse(not fp8 and tail.amax_out is not None, "amax_out= with out_format=", None, "name the format")
    wide = [x.dtype for x in (a, b) if type(x) is not Operand and x.dtype not in COMPUTED]
    if wide or dtype not in COMPUTED:
        got = wide[0] if wide else dtype
        raise DTypeError(message("gemm", "float32, bfloat16 or float16 with an epilogue", got, "cast it with x.astype"))
    if tail.aux is not None:
        check_out("gemm", tail.aux, shape, tail.aux.dtype if fp8 and tail.aux.dtype in COMPUTED else dtype)
    if fp8:
        _check_fp8(tail)


def check_sums(
    shape: tuple[int, ...], dtype: np.dtype, a: Any, b: Any, sums: Any, of: Summed, tail: Tail | None
) -> None:
    """Raise unless column sums of the result (of ``dtype`` and ``shape``) or of an operand can be written."""
    check_choice("gemm", "bias_grad_of", of, ("result", "a", "b"))
    if of == "result" and tail is not None and tail.out_format is not None:
        do = "sum the operands, or quantize the result afterwards"
        raise ArgumentError(message("gemm", "bias_grad of a dense result", "out_format", do))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ShapeError(message("gemm", "matrices with bias_grad", f"{a.shape} @ {b.shape}", "reshape the batch axes"))
    x = {"a": a, "b": b}.get(of)
    for found in (sums.dtype, dtype if x is None else FLOAT32 if type(x) is Operand else x.dtype):
        if found not in COMPUTED:
            expected = "float32, bfloat16 or float16 with bias_grad"
            raise DTypeError(message("gemm", expected, found, "cast it with x.astype"))
    check_out("gemm", sums, (shape[0] if of == "a" else shape[1],), sums.dtype)


def _check_fp8(tail: Tail) -> None:
    fmt = tail.out_format
    assert fmt is not None
    if fmt.block is not None or fmt.element.bits != 8 or fmt.element.integer or fmt.scale.bits != 32:
        do = "quantize the result with quantize()"
        raise NotBuiltError(message("gemm", "out_format as FP8 with one float32 scale", fmt.name, do))
    if tail.out_scale is None:
        raise ArgumentError(message("gemm", "out_scale= with out_format=", None, "pass the scaling state's word"))
    check_word("gemm", "out_scale", tail.out_scale)
    if tail.amax_out is not None:
        check_word("gemm", "amax_out", tail.amax_out)


def column_sums(sums: Any, of: Summed, a: Any, b: Any, result: Any) -> None:
    """Write the column sums of the result, or of an operand along the contraction.

    Always by the kernel of `bias_grad`, whose bits are the same on every device. cuBLASLt's epilogues that do it cost
    more (H200, bfloat16, 8192^3: DGELU_BGRAD 2.05 ms against 1.66 + 0.04, BGRADB 1.67 against 1.43 + 0.04).
    """
    x = {"a": a, "b": b, "result": result}[of]
    values = dequantize(x, FLOAT32) if type(x) is Operand else x
    bias_grad(values.swapaxes(-1, -2) if of == "a" else values, dtype=sums.dtype, out=sums)


def composed(product: Callable[[np.dtype, Any], Any], tail: Tail, dtype: np.dtype, out: Any | None) -> Any:
    """Run a product and its epilogue one after the other.

    Args:
        product: ``(dtype, out)`` -> the plain product.
        tail: what follows.
        dtype: of the result.
        out: where to write, or None.
    """
    if tail.epilogue is None and tail.out_format is None:
        return product(dtype, out)
    y = product(FLOAT32, None)
    if tail.epilogue == "gelu":
        if tail.aux is not None:
            cast(y, tail.aux.dtype, out=tail.aux)
        y = activation(y, "gelu", out=y)
    elif tail.epilogue == "dgelu":
        assert tail.aux is not None
        aux = tail.aux if tail.aux.dtype == FLOAT32 else cast(tail.aux, FLOAT32)
        y = activation_vjp(aux, y, "gelu", out=y)
    if tail.out_format is not None:
        return quantize(y, tail.out_format, scale=tail.out_scale, amax_out=tail.amax_out).row
    return y if out is None and dtype == FLOAT32 else cast(y, dtype, out=out)


def result_shape(a: Any, b: Any) -> tuple[int, ...]:
    """Return the shape of ``a @ b``; raise unless lengths and batch axes fit."""
    left, right = a.shape, b.shape
    if len(left) < 2 or len(right) < 2:
        raise ShapeError(message("gemm", "operands of at least two axes", f"{left} @ {right}", "add an axis"))
    if left[-1] != right[-2]:
        raise ShapeError(message("gemm", "equal inner lengths", f"{left} @ {right}", "transpose one operand"))
    if len(left) == len(right) == 2:
        return (left[0], right[1])
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise ShapeError(
            message("gemm", "batch axes that broadcast", f"{left} @ {right}", "make them equal or 1")
        ) from None
    return (*batch, left[-2], right[-1])


_FLOATS = frozenset(FLOATS)
_FLOAT64 = np.dtype(np.float64)


def result_dtype(a: Any, b: Any, dtype: np.dtype | None, out: Any | None) -> np.dtype:
    """Check the dense dtypes and return the result's."""
    dense = () if type(a) is Operand else (a.dtype,)
    if type(b) is not Operand:
        dense = (*dense, b.dtype)
    if dtype is None:
        dtype = out.dtype if out is not None else _common(dense)
    if dtype in _FLOATS and _FLOATS.issuperset(dense):
        return dtype
    wrong = next(found for found in (*dense, dtype) if found not in _FLOATS)
    raise DTypeError(
        message("gemm", "float32, bfloat16, float16 or float64", wrong, "cast it with x.astype, or quantize it")
    )


def _common(dense: tuple[np.dtype, ...]) -> np.dtype:
    if not dense:
        return FLOAT32
    if dense[0] == dense[-1]:
        return dense[0]
    return _FLOAT64 if _FLOAT64 in dense else FLOAT32


def check_rotation(a: Any, b: Any) -> None:
    """Raise unless a rotation cancels: both operands went through it along the contraction axis, or neither."""
    left = a.rotation if type(a) is Operand else "none"
    right = b.rotation if type(b) is Operand else "none"
    if left == "none" == right:
        return
    if left != right or a.axis != len(a.shape) - 1 or b.axis != len(b.shape) - 2:
        raise ArgumentError(
            message("gemm", "both operands rotated along K, or neither", f"{left} @ {right}", "quantize both alike")
        )


def rounded_bias(bias: Any, n: int, dtype: np.dtype) -> Any:
    """Check a bias and return it in the dtype that it is added in."""
    if bias.shape != (n,):
        raise ShapeError(message("gemm", f"a bias of shape ({n},)", bias.shape, "give one value per column of b"))
    if bias.dtype not in _FLOATS:
        raise DTypeError(message("gemm", "a float bias", bias.dtype, "cast it with x.astype"))
    return bias if bias.dtype == dtype else cast(bias, dtype)
