"""Muon: momentum, orthogonalized, for the weight matrices of hidden layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from nvfp.arrays.array import Array
from nvfp.dtypes.dense import bfloat16
from nvfp.errors import ArgumentError, NotBuiltError, ShapeError, message
from nvfp.kernels._check import check_choice
from nvfp.kernels._dispatch import place_like
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.gemm import gemm
from nvfp.kernels.multi_tensor import l2_norm
from nvfp.optim._base import F32, Group, Optimizer, Params, Work, number

_LR_RULES = ("original", "match_rms_adamw")


class Muon(Optimizer):
    """Momentum whose matrix is replaced by (nearly) its nearest orthogonal one.

    ``B = mu B + (1-mu) g``, ``U = mu B + (1-mu) g`` (nesterov) or ``B``; ``O`` is U with its singular values moved
    towards 1 by Newton-Schulz steps ``X = a X + (b X X^T + c (X X^T)^2) X`` from ``X = U / |U|``;
    ``p = (1 - lr wd) p - lr r O``.

    Args:
        params: as in `AdamW`, but matrices only: embeddings, heads, norms and biases belong to another optimizer.
            Groups may have ``lr``, ``momentum`` and ``weight_decay`` of their own.
        lr: learning rate; may be set between steps, also for a captured graph.
        weight_decay: wd.
        momentum: mu.
        nesterov: look ahead.
        ns_coefficients: (a, b, c).
        eps: least norm |U|.
        ns_steps: Newton-Schulz steps, 1 to 99.
        adjust_lr: r for a matrix [N, K]: ``"original"`` ``sqrt(max(1, N / K))``, or ``"match_rms_adamw"``
            ``0.2 sqrt(max(N, K))``, with which AdamW's rates fit.
        master_weights: as in `AdamW`.

    Raises:
        ShapeError: a parameter that is no matrix.
        ArgumentError: as in `AdamW`, or an unknown ``adjust_lr``.
        DTypeError: as in `AdamW`.
        StateError: as in `AdamW`.
        NotBuiltError: (`step`) a ``skip`` flag.

    Numerics: momentum, norm and update in float32, Newton-Schulz in bfloat16 with float32 sums, as in torch. The same
        call repeats its bits; CPU and CUDA agree within the errors of bfloat16 products.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024); Liu et al., "Muon is
        scalable for LLM training" (2025); torch.optim.Muon.

    Example:
        >>> import nvfp as nf
        >>> w = nf.parameter(nf.eye(4, device="cpu"))
        >>> optimizer = nf.optim.Muon({"w": w}, lr=0.1, weight_decay=0.0)
        >>> (w * w).sum().backward(); optimizer.step()
        >>> bool(w[0, 0] < 1.0), optimizer.step_count
        (True, 1)
    """

    TABLES: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        *,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr: str = "original",
        master_weights: bool = True,
    ) -> None:
        check_choice("Muon", "adjust_lr", adjust_lr, _LR_RULES)
        if isinstance(ns_steps, bool) or not isinstance(ns_steps, int) or not 1 <= ns_steps < 100:
            raise ArgumentError(message("Muon", "ns_steps from 1 to 99", repr(ns_steps), "pass e.g. 5"))
        if not isinstance(ns_coefficients, tuple | list) or len(ns_coefficients) != 3:
            raise ArgumentError(message("Muon", "three ns_coefficients", repr(ns_coefficients), "pass (a, b, c)"))
        self.nesterov, self.ns_steps, self.adjust_lr = bool(nesterov), ns_steps, adjust_lr
        self.eps = number("Muon", "eps", eps, 0.0)
        self.ns_coefficients = tuple(number("Muon", "ns_coefficients", c) for c in ns_coefficients)
        given = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, given, master_weights=master_weights)
        self._c = place_like(np.asarray(self.ns_coefficients[2], F32), self.groups[0].words)  # for gemm's alpha

    def _checked(self, values: Mapping[str, Any]) -> dict[str, float]:
        return {
            "lr": number("Muon", "lr", values["lr"], 0.0),
            "momentum": number("Muon", "momentum", values["momentum"], 0.0, 1.0),
            "weight_decay": number("Muon", "weight_decay", values["weight_decay"]),
        }

    def _group(self, params: dict[str, Array], values: dict[str, float], master_weights: bool) -> Group:
        for name, p in params.items():
            if p.ndim != 2 or 0 in p.shape:
                do = "give it to nf.optim.AdamW"
                raise ShapeError(message("Muon", "matrices that are not empty", f"{name} {p.shape}", do))
        return super()._group(params, values, master_weights)

    def _update(self, work: Work, skip: Any | None) -> None:
        if skip is not None:
            do = "leave it out, or zero the gradients"
            raise NotBuiltError(message("Muon.step", "skip=None", "a flag", do))
        group = work.group
        lr, mu, decay = (group.words[i : i + 1].reshape(()) for i in range(3))
        rest = elementwise("subtract", 1.0, mu)
        keep = elementwise("subtract", 1.0, elementwise("multiply", lr, decay))
        buffers = work.table("momentum_buffer")
        for p, g, buffer, master in zip(work.params, work.grads, buffers, work.master, strict=True):
            share = elementwise("multiply", g, rest, dtype=F32)
            elementwise("multiply_add", buffer, mu, share, out=buffer)
            u = elementwise("multiply_add", buffer, mu, share) if self.nesterov else buffer
            step = elementwise("multiply", lr, -self._ratio(p.shape))
            exact = p if master is None else master
            held = elementwise("multiply", exact, keep, dtype=F32)
            elementwise("multiply_add", self._orthogonal(u), step, held, out=exact)
            if master is not None:
                cast(master, p.dtype, out=p)
        elementwise("add", group.step, 1, out=group.step)

    def _ratio(self, shape: tuple[int, ...]) -> float:
        n, k = shape
        return math.sqrt(max(1.0, n / k)) if self.adjust_lr == "original" else 0.2 * math.sqrt(max(n, k))

    def _orthogonal(self, u: Any) -> Any:
        """O of U, in bfloat16, of U's shape."""
        a, b, _ = self.ns_coefficients
        tall = u.shape[0] > u.shape[1]
        norm = elementwise("maximum", l2_norm([u]), self.eps)
        x = elementwise("divide", u.T if tall else u, norm, dtype=bfloat16)
        for _ in range(self.ns_steps):
            gram = gemm(x, x.T)
            mixed = elementwise("multiply", gram, b, dtype=F32)
            gemm(gram, gram, alpha=self._c, out=mixed, accumulate=True)
            wide = elementwise("multiply", x, a, dtype=F32)
            gemm(cast(mixed, bfloat16), x, out=wide, accumulate=True)
            x = cast(wide, bfloat16)
        return x.T if tall else x
