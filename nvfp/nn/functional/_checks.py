"""What is asked of the operands of a linear layer, before anything is made of them."""

from __future__ import annotations

from nvfp.arrays.array import Array
from nvfp.arrays.quantized import QuantizedArray
from nvfp.errors import DTypeError, ShapeError, message


def check_operands(x: Array, weight: Array, bias: Array | None, *, quantized: bool) -> None:
    """Raise unless the shapes fit and the dtypes are floating (and equal, where nothing is quantized)."""
    for name, given in (("x", x), ("weight", weight)):
        if not given._differentiable and not isinstance(given, QuantizedArray):
            do = "cast it with .astype(nf.float32) first"
            raise DTypeError(message("linear", f"{name} of a dense floating dtype", given.dtype, do))
    if x.ndim < 1 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            message(
                "linear", "x [..., K] and weight [N, K]", f"{x.shape} and {weight.shape}", "make the last lengths equal"
            )
        )
    if bias is not None and bias.shape != (weight.shape[0],):
        raise ShapeError(
            message("linear", f"bias ({weight.shape[0]},)", bias.shape, "give one value per output feature")
        )
    if not quantized and x.dtype != weight.dtype and not isinstance(weight, QuantizedArray):
        raise DTypeError(
            message(
                "linear",
                "x and weight of one dtype outside autocast",
                f"{x.dtype} and {weight.dtype}",
                f"cast with x.astype(nf.{weight.dtype}), or make the module with dtype=nf.{x.dtype}",
            )
        )
