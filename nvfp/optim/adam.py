"""Adam and AdamW: float32 moments, float32 master weights for 16-bit and quantized parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from nvfp.errors import ArgumentError, message
from nvfp.kernels.adam import adam
from nvfp.optim._base import Optimizer, Params, Work, number


class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    ``m = b1 m + (1-b1) g``, ``v = b2 v + (1-b2) g^2``,
    ``p -= lr (mhat / (sqrt(vhat) + eps) + wd p)`` with bias-corrected mhat, vhat.

    Args:
        params: name -> parameter, as ``model.parameters()`` gives; or a list of groups ``{"params": mapping, ...}``
            with hyperparameters of their own (``lr``, ``betas``, ``eps``, ``weight_decay``). float32, bfloat16,
            float16, or quantized (`nf.quantized_model_init`). One with several names (tied weights) is updated once,
            under its first name.
        lr: learning rate; may be set between steps (`optimizer.lr = ...`), also for a captured graph. Groups that
            have one of their own keep its ratio to this.
        betas: decay of the moments.
        eps: added to the root.
        weight_decay: wd.
        master_weights: keep a float32 copy of 16-bit and quantized parameters, and round the parameters from it.
            That of a quantized one starts from its first values where they are kept, else from its values now.

    Raises:
        ArgumentError: no parameters, hyperparameters outside their ranges or unknown, a name in two groups.
        DTypeError: no mapping, or parameters of another dtype.
        StateError: (`step`) a gradient waits for ``backward_dw``; nothing is changed.

    Numerics: float32, one launch per group and dtype on CUDA; the step count and all hyperparameters are device
        words. The gradient is ``main_grad`` where a parameter has one, else ``.grad``; a parameter without either is
        left alone. A quantized parameter is quantized anew from its master weights after the step. CPU and CUDA use
        one order of operations.

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization".

    Example:
        >>> import nvfp as nf
        >>> w = nf.parameter(nf.ones((2,), device="cpu"))
        >>> optimizer = nf.optim.AdamW({"w": w}, lr=0.1, weight_decay=0.0)
        >>> w.sum().backward(); optimizer.step()
        >>> w.tolist()
        [0.8999999761581421, 0.8999999761581421]
    """

    TABLES: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    _mode: ClassVar[str] = "adamw"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        master_weights: bool = True,
    ) -> None:
        given: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, given, master_weights=master_weights)

    def _checked(self, values: Mapping[str, Any]) -> dict[str, float]:
        own, betas = type(self).__name__, values["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ArgumentError(message(own, "two betas", repr(betas), "pass e.g. (0.9, 0.999)"))
        return {
            "lr": number(own, "lr", values["lr"], 0.0),
            "beta1": number(own, "betas", betas[0], 0.0, 1.0),
            "beta2": number(own, "betas", betas[1], 0.0, 1.0),
            "eps": number(own, "eps", values["eps"], 0.0),
            "weight_decay": number(own, "weight_decay", values["weight_decay"]),
        }

    def _update(self, work: Work, skip: Any | None) -> None:
        m, v = (work.table(name) for name in self.TABLES)
        words, step = work.group.words, work.group.step
        adam(work.params, work.grads, m, v, work.master, words, step, mode=self._mode, skip=skip)


class Adam(AdamW):
    """Adam with L2 regularization: ``g + wd p`` takes the place of the gradient; otherwise as `AdamW`.

    Args:
        params: as in `AdamW`.
        lr: as in `AdamW`.
        betas: as in `AdamW`.
        eps: as in `AdamW`.
        weight_decay: wd; 0 unless given, as in torch.
        master_weights: as in `AdamW`.

    Raises:
        ArgumentError: as in `AdamW`.
        DTypeError: as in `AdamW`.
        StateError: as in `AdamW`.

    Numerics: as `AdamW`.

    Source: Kingma and Ba, "Adam: a method for stochastic optimization".

    Example:
        >>> import nvfp as nf
        >>> w = nf.parameter(nf.ones((2,), device="cpu"))
        >>> optimizer = nf.optim.Adam([{"params": {"w": w}, "lr": 0.5}], lr=0.1)
        >>> w.sum().backward(); optimizer.step()
        >>> w.tolist()
        [0.5, 0.5]
    """

    _mode: ClassVar[str] = "adam_l2"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        master_weights: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, master_weights=master_weights)
