"""Arrays: dense and quantized, their functions with gradients, DLPack, random numbers. See README.md.

Importing this package loads every file that enters functions into `registry`, where operators and methods
look them up. The public names stand in one list, the root's ``_contents.py``.
"""

from nvfp.arrays import convert, creation, quantized, random, ranges
from nvfp.arrays.functions import (
    comparison,
    conversion,
    einsum,
    elementwise,
    indexing,
    joining,
    matmul,
    order,
    padding,
    products,
    quantization,
    reductions,
    shape,
    stacking,
    statistics,
)

__all__ = [
    "comparison", "conversion", "convert", "creation", "einsum", "elementwise", "indexing", "joining", "matmul",
    "order", "padding", "products", "quantization", "quantized", "random", "ranges", "reductions", "shape",
    "stacking", "statistics",
]  # fmt: skip
