"""`LinearCrossEntropy`: the head of a language model and its loss, without the logits."""

from __future__ import annotations

from typing import Any, Literal

from nvfp.arrays.array import Array
from nvfp.arrays.random import Generator
from nvfp.dtypes.dense import float32
from nvfp.nn._init import Constant, Init, Normal, count
from nvfp.nn._initial import Initial
from nvfp.nn.functional.linear_cross_entropy import CHUNK_BYTES, linear_cross_entropy
from nvfp.nn.module import Module


class LinearCrossEntropy(Module):
    """``cross_entropy(x W^T + b, targets)`` in chunks of rows: the logits [.., V] never exist as a whole.

    Args:
        in_features: K.
        num_classes: V.
        bias: add a bias [V], initially zero.
        ignore_index: as `nf.nn.cross_entropy`.
        label_smoothing: as `nf.nn.cross_entropy`.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        chunk_bytes: most bytes of logits that exist at once.
        recompute: make the logits again in backward: a third more arithmetic, less memory until then.
        init_method: ``(shape, rng, dtype, device) -> Array`` for the weight; default normal with standard deviation
            0.023.
        dtype: of the parameters; float32 unless given.
        device: of the parameters; the default device unless given. ``"meta"``: see `Module.reset_parameters`.
        rng: a `nf.random.Generator`; without one fresh entropy.

    Shapes: x [..., K], targets [...], weight [V, K], bias [V]; result a float32 scalar, or [...] for ``"none"``.
        To share the weight with an embedding: ``head.weight = embedding.weight``.

    Raises:
        ArgumentError: a value out of range.

    Numerics: see `nvfp.nn.functional.linear_cross_entropy.linear_cross_entropy`; no recipe quantizes this layer.

    Example:
        >>> import nvfp as nf
        >>> head = nf.nn.LinearCrossEntropy(4, 10, device="cpu", rng=nf.random.default_rng(0, device="cpu"))
        >>> head(nf.zeros((2, 3, 4), device="cpu"), nf.zeros((2, 3), dtype=nf.int64, device="cpu")).shape
        ()
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        bias: bool = False,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        chunk_bytes: int = CHUNK_BYTES,
        recompute: bool = False,
        init_method: Init | None = None,
        dtype: Any = None,
        device: Any = None,
        rng: Generator | None = None,
    ) -> None:
        super().__init__()
        self.in_features = count("LinearCrossEntropy", "in_features", in_features)
        self.num_classes = count("LinearCrossEntropy", "num_classes", num_classes)
        self.options: dict[str, Any] = {
            "ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction,
            "chunk_bytes": count("LinearCrossEntropy", "chunk_bytes", chunk_bytes), "recompute": bool(recompute),
        }  # fmt: skip
        dtype = float32 if dtype is None else dtype
        shape = self.num_classes, self.in_features
        self.add_initial("weight", Initial(shape, dtype, init_method or Normal(0.023), rng), device)
        self.bias: Array | None = None
        if bias:
            self.add_initial("bias", Initial(shape[:1], dtype, Constant(0.0)), device)

    def forward(self, x: Array, targets: Array) -> Array:
        """Return the loss of ``targets`` [...] given ``x`` [..., K]."""
        return linear_cross_entropy(x, self.weight, targets, self.bias, **self.options)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.in_features}, {self.num_classes}, bias={self.bias is not None}"
