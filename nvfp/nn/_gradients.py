"""Gradients of weights beside the tape: gathered in ``main_grad``, or put off until ``backward_dw``."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.creation import zeros
from nvfp.arrays.quantized import dense_dtype
from nvfp.autograd.recompute import keeping, recomputing
from nvfp.autograd.tape import Leaf, needs_grad
from nvfp.dtypes.dense import float32
from nvfp.errors import ArgumentError, StateError, message
from nvfp.nn._joined import JoinedStorage
from nvfp.nn.functional._delivery import Later, WeightGradient


class WeightGradients:
    """What one GEMM of a module does with the gradients of its weight.

    Args:
        fuse: add them to the ``main_grad`` of its parameters.
        delay: put them off until `run`.
    """

    __slots__ = ("_whole", "fuse", "later")

    def __init__(self, fuse: bool = False, delay: bool = False) -> None:
        self.fuse = fuse
        self.later: Later | None = deque() if delay else None
        self._whole: Array | None = None

    def begin(self, parts: Sequence[Array], first: bool | None) -> WeightGradient | None:
        """Return where the gradient of this forward pass goes; None: back to the tape.

        Arrays that are no variables of the user's (`functional_call`, inside `nf.grad`) get theirs from the tape.

        Args:
            parts: the parameters whose rows together are the weight.
            first: ``is_first_microbatch``: True has the next gradient replace what ``main_grad`` holds.

        Raises:
            StateError: several parts with a ``main_grad`` that do not lie side by side.
        """
        if not self.fuse and self.later is None:
            return None
        leaves = [p._node for p in parts if type(p._node) is Leaf and not p._node.temporary]
        if len(leaves) < len(parts):
            return None
        recorded = needs_grad(*parts)
        main = self._main(parts) if self.fuse and recorded else None
        if self.fuse and not recomputing() and (recorded or keeping()):
            for leaf in leaves:
                leaf.stale = leaf.stale or first is True or leaf.overwrite
        if not recorded:
            return None
        bounds = pairwise([0, *accumulate(p.shape[0] for p in parts)])
        rows = tuple([(leaf, a, b) for leaf, (a, b) in zip(leaves, bounds, strict=True)])
        return WeightGradient(rows, dense_dtype(parts[0]), main, self.later)

    def run(self) -> None:
        """Compute the gradients that were put off, the oldest first."""
        while self.later:
            self.later.popleft()()

    def _main(self, parts: Sequence[Array]) -> Array:
        """The ``main_grad`` of the whole weight; made with zeros where there is none."""
        given = [p.main_grad for p in parts]
        if len(parts) == 1:
            if given[0] is None:
                parts[0].main_grad = zeros(parts[0].shape, dtype=float32, device=parts[0].device)
            return parts[0].main_grad  # type: ignore[return-value]
        whole = self._whole
        bounds = list(pairwise([0, *accumulate(p.shape[0] for p in parts)]))
        if all(g is None for g in given):
            whole = zeros((bounds[-1][1], *parts[0].shape[1:]), dtype=float32, device=parts[0].device)
            for p, (a, b) in zip(parts, bounds, strict=True):
                p.main_grad = wrap(whole.raw[a:b])
            storages = tuple([p.main_grad.storage for p in parts if p.main_grad is not None])
            whole = self._whole = wrap(whole.raw, storage=JoinedStorage(whole.raw, storages))
        elif whole is None or [id(g.storage) for g in given if g is not None] != [
            id(s) for s in getattr(whole.storage, "parts", ())
        ]:
            expected = "main_grad of all parts as the layer has made it"
            do = "leave it to the layer, or make the layer with one weight (fuse_qkv_params=True)"
            raise StateError(message("fuse_wgrad_accumulation", expected, "others", do))
        return whole


def gradient_options(layer: str, **given: object) -> dict[str, Any]:
    """Return a layer's arguments about gradients, checked.

    Args:
        layer: the public name, for messages.
        given: ``fuse_wgrad_accumulation``, ``delay_wgrad_compute``, ``save_original_input``.

    Raises:
        ArgumentError: one that is no bool.
    """
    for name, value in given.items():
        if not isinstance(value, bool):
            raise ArgumentError(message(layer, f"{name} as a bool", repr(value), "pass True or False"))
    return given
