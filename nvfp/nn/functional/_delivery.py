"""What becomes of a linear layer's results: where dW goes, and whether y and dx leave quantized."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.quantized import QuantizedArray, quantized
from nvfp.autograd.region import collect_after_backward
from nvfp.autograd.tape import Leaf, leaf_lock
from nvfp.kernels.gemm import gemm
from nvfp.recipes.operands import quantize_for_gemm
from nvfp.recipes.plan import TensorPlan
from nvfp.recipes.state import DelayedState

Later = deque[Callable[[], None]]


@dataclass(frozen=True, slots=True)
class WeightGradient:
    """Where the gradient of a weight goes instead of back to the tape.

    Attributes:
        parts: the variables that together are the weight, each with its first and its last row (exclusive).
        dtype: of their ``.grad``.
        main: float32 [N, K], the ``main_grad`` of the whole weight, which the GEMM adds to; None: ``.grad``.
        later: where the work waits for ``backward_dw``; None: it is done at once.
    """

    parts: tuple[tuple[Leaf, int, int], ...]
    dtype: Any
    main: Array | None = None
    later: Later | None = None

    def give(self, left: Any, right: Any, *, fast_accumulation: bool = False) -> None:
        """Compute ``left @ right`` [N, K] and deliver it, now or later."""

        def work() -> None:
            options: dict[str, Any] = {"fast_accumulation": fast_accumulation}
            if self.main is None:
                whole = gemm(left, right, dtype=self.dtype, **options)
                for leaf, a, b in self.parts:
                    leaf.accumulate(wrap(whole[a:b]), True)
                return
            with leaf_lock:  # two threads may run backward into one parameter
                anew = all(leaf.stale for leaf, _, _ in self.parts)
                for leaf, a, b in self.parts:
                    if leaf.stale and not anew:  # something else has given another part its first gradient
                        self.main.raw[a:b].fill(0)
                    leaf.stale = False
                gemm(left, right, out=self.main.raw, accumulate=not anew, **options)
                self.main.storage.touch()

        if self.later is None:
            work()
            return
        waiting = _Waiting(work, self.parts)
        self.later.append(waiting)
        collect_after_backward("delayed wgrad", _EndOfBackward).put_off.append((self.later, waiting))


class _Waiting:
    """The work of one gradient that was put off; optimizers raise while it waits."""

    def __init__(self, work: Callable[[], None], parts: tuple[tuple[Leaf, int, int], ...]) -> None:
        self._work, self._parts = work, parts
        self.count(1)

    def __call__(self) -> None:
        self._work()
        self.count(-1)

    def count(self, change: int) -> None:
        """Add to the number of gradients that each part waits for."""
        for leaf, _, _ in self._parts:
            leaf.waiting += change


class _EndOfBackward:
    """What one backward pass has put off: forgotten if the pass fails."""

    def __init__(self) -> None:
        self.put_off: list[tuple[Later, _Waiting]] = []

    def __call__(self) -> None:
        """Nothing to do: the work waits for ``backward_dw``."""

    def discard(self) -> None:
        """Take the gradients of a pass that failed out of their queues."""
        for later, waiting in self.put_off:
            if waiting in later:
                later.remove(waiting)
                waiting.count(-1)


@dataclass(frozen=True, slots=True)
class Narrow:
    """How y or dx is quantized on its way out.

    Attributes:
        plan: one scale per tensor.
        state: its scaling state, where the plan has delayed scales.
        role: its name there.
        recording: whether the amax is recorded.
    """

    plan: TensorPlan
    state: DelayedState | None
    role: str
    recording: bool = True

    def __call__(self, raw: Any, shape: tuple[int, ...], node: Any = None) -> QuantizedArray:
        """Return a matrix quantized, in another shape with the same last length."""
        row = quantize_for_gemm(
            raw, self.plan, row=True, col=False, state=self.state, role=self.role, recording=self.recording
        ).row
        assert row is not None
        return quantized(reshaped(row, shape), node)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Everything a module asks of `linear` beside the product.

    Attributes:
        weight: where dW goes; None: back to the tape.
        save_original_input: keep x as it came and quantize its column copy in backward.
        output: y leaves quantized.
        gradient: dx leaves quantized.
        needs_output: False: y is not read (a segment that is run again), so it is not computed.
    """

    weight: WeightGradient | None = None
    save_original_input: bool = False
    output: Narrow | None = None
    gradient: Narrow | None = None
    needs_output: bool = True

    def give(self, left: Any, right: Any, *, dtype: Any, fast_accumulation: bool = False) -> Array | None:
        """Return dW = ``left @ right`` in ``dtype``, or deliver it elsewhere and return None."""
        if self.weight is None:
            return wrap(gemm(left, right, dtype=dtype, fast_accumulation=fast_accumulation))
        self.weight.give(left, right, fast_accumulation=fast_accumulation)
        return None


PLAIN = Delivery()


def reshaped(operand: Any, shape: tuple[int, ...]) -> Any:
    """An Operand with one scale per tensor, plainly stored, in another shape with the same last length."""
    codes = operand.codes.reshape((*shape[:-1], operand.codes.shape[-1]))
    return replace(operand, codes=codes, shape=shape, axis=len(shape) - 1, padded_rows=0)
