"""`DropoutState`: seed, step and call count behind the masks of one module.

A forward pass keeps the step it used, so that its backward has the same mask although others have advanced the word
in between.
"""

from __future__ import annotations

from nvfp.nn._random_state import Draw, RandomState

__all__ = ["Draw", "DropoutState"]


class DropoutState(RandomState):
    """The random state of one module that drops.

    Args:
        rng: gives the 64-bit key; without one fresh entropy.

    Raises:
        DTypeError: an rng that is no Generator.

    Example:
        >>> import numpy as np
        >>> import nvfp as nf
        >>> state = DropoutState(nf.random.default_rng(0))
        >>> state.draw(np.ones(3, np.float32)).ordinal, sorted(state.state_dict())
        (0, ['dropout.calls', 'dropout.key', 'dropout.step'])
    """

    __slots__ = ()
    prefix = "dropout"
