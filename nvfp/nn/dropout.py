"""`Dropout`: the layer that drops in training mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array
from nvfp.arrays.random import Generator
from nvfp.kernels.dropout import check_probability
from nvfp.nn._dropout import DropoutState
from nvfp.nn.functional.dropout import dropout
from nvfp.nn.module import Module


class Dropout(Module):
    """Sets elements to 0 with probability p and multiplies the others by 1 / (1 - p), in training mode only.

    Args:
        p: chance of being dropped, 0 to 1.
        rng: a `nf.random.Generator` that gives the layer's seed; without one fresh entropy.

    Raises:
        ArgumentError: p out of range.
        DTypeError: an rng that is no Generator.

    Numerics: see `nvfp.nn.functional.dropout.dropout`. Masks differ from call to call, and from step to step: a
        step ends with an outermost backward pass. `state_dict` keys ``dropout.*``, present once the layer has
        dropped something, resume the same sequence.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.Dropout(0.5, rng=nf.random.default_rng(0))
        >>> x = nf.ones((4,), device="cpu")
        >>> set(layer(x).tolist()) <= {0.0, 2.0}, layer.eval()(x).tolist()
        (True, [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, p: float = 0.5, *, rng: Generator | None = None) -> None:
        super().__init__()
        check_probability("Dropout", p)
        self.p = p
        self._dropout = DropoutState(rng)

    def forward(self, x: Array, residual: Array | None = None) -> Array:
        """Return dropout(x), plus ``residual`` (of the shape and dtype of x) where one is given."""
        x = array("Dropout", x)
        if self.training and self.p:
            with self._dropout.drawing(x.raw) as draw:
                return dropout(x, self.p, draw, residual=residual)
        return x if residual is None else x + residual

    def extra_state(self) -> dict[str, Any]:
        """Seed, step and calls, once the layer has dropped something."""
        return self._dropout.state_dict()

    def load_extra_state(self, state: dict[str, Any]) -> Callable[[], None]:
        """Check saved dropout state and return the call that takes it."""
        return self._dropout.load(state)

    def extra_repr(self) -> str:
        """Probability."""
        return f"p={self.p}"
