"""`DropPath`: the layer that drops whole samples in training mode (stochastic depth)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array
from nvfp.arrays.random import Generator
from nvfp.kernels.dropout import check_probability
from nvfp.nn._dropout import DropoutState
from nvfp.nn.functional.drop_path import check_axis, drop_path
from nvfp.nn.module import Module


class DropPath(Module):
    """Drops each sample with probability ``rate`` and multiplies the others by 1 / (1 - rate), in training mode only.

    Args:
        rate: chance of being dropped, 0 to 1.
        axis: the axis of samples.
        rng: a `nf.random.Generator` that gives the layer's seed; without one fresh entropy.

    Raises:
        ArgumentError: rate out of range, or an axis that is no integer.
        DTypeError: an rng that is no Generator.
        ShapeError: an input without that axis.

    Numerics: see `nvfp.nn.functional.drop_path.drop_path`. Masks differ from call to call, and from step to step: a
        step ends with an outermost backward pass. `state_dict` keys ``dropout.*``, present once the layer has
        dropped something, resume the same sequence.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.DropPath(0.5, rng=nf.random.default_rng(0))
        >>> x = nf.ones((3, 2), device="cpu")
        >>> all(row in ([0.0, 0.0], [2.0, 2.0]) for row in layer(x).tolist()), layer.eval()(x) is x
        (True, True)
    """

    def __init__(self, rate: float = 0.0, *, axis: int = 0, rng: Generator | None = None) -> None:
        super().__init__()
        check_probability("DropPath", rate)
        check_axis("DropPath", axis, 64)  # the input says how many axes there are
        self.rate = rate
        self.axis = axis
        self._dropout = DropoutState(rng)

    def forward(self, x: Array) -> Array:
        """Return x with samples dropped; in eval mode, or at rate 0, x itself."""
        x = array("DropPath", x)
        if not self.training or not self.rate:
            return x
        with self._dropout.drawing(x.raw) as draw:
            return drop_path(x, self.rate, draw, axis=self.axis)

    def extra_state(self) -> dict[str, Any]:
        """Seed, step and calls, once the layer has dropped something."""
        return self._dropout.state_dict()

    def load_extra_state(self, state: dict[str, Any]) -> Callable[[], None]:
        """Check saved dropout state and return the call that takes it."""
        return self._dropout.load(state)

    def extra_repr(self) -> str:
        """Rate and axis."""
        return f"rate={self.rate}, axis={self.axis}"
