"""`custom_vjp`: a function with a gradient rule of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import signature
from typing import Any

from nvfp.autograd.grad_mode import enable_grad, no_grad
from nvfp.autograd.protocol import is_tracked
from nvfp.autograd.tape import Output, needs_grad, record
from nvfp.autograd.trees import leaves, map_leaves
from nvfp.errors import GradientError, message


def _fill(tree: Any, values: Sequence[Any]) -> Any:
    rest = iter(values)
    return map_leaves(lambda _: next(rest), tree)


def _matched(name: str, tree: Any, gradients: Any) -> Iterator[Any]:
    """Yield one gradient (or None) per leaf of ``tree``, a nest of shapes wrapped in `_Shape`."""
    if isinstance(tree, dict | list | tuple):
        if gradients is None:
            yield from (None for _ in leaves(tree))
            return
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        if not isinstance(gradients, dict if isinstance(tree, dict) else list | tuple) or len(gradients) != len(tree):
            text = f"{type(gradients).__name__} of {len(gradients) if hasattr(gradients, '__len__') else 1}"
            raise GradientError(
                message(name, f"gradients nested like {type(tree).__name__} of {len(tree)}", text, "correct bwd")
            )
        for key in keys:
            yield from _matched(name, tree[key], gradients[key])
    else:
        if gradients is not None and getattr(gradients, "shape", None) != tree.shape:
            text = getattr(gradients, "shape", type(gradients).__name__)
            raise GradientError(message(name, f"a gradient of shape {tree.shape} from bwd", text, "correct bwd"))
        yield gradients


class _Like:
    """Shape, dtype and device of an array, without its memory; no shape for another leaf."""

    __slots__ = ("device", "dtype", "namespace", "shape")

    def __init__(self, leaf: Any) -> None:
        tracked = is_tracked(leaf)
        self.shape: Any = leaf.shape if tracked else None
        self.dtype: Any = getattr(leaf, "dtype", None)
        self.device: Any = getattr(leaf, "device", None)
        self.namespace: Any = leaf.__array_namespace__() if tracked else None

    def zeros(self) -> Any:
        return self.namespace.zeros(self.shape, dtype=self.dtype, device=self.device)


def custom_vjp(
    f: Callable[..., Any],
    fwd: Callable[..., tuple[Any, Any]],
    bwd: Callable[[Any, Any], Sequence[Any]],
    *,
    differentiable_twice: bool = False,
) -> Callable[..., Any]:
    """Return ``f`` with the gradient rule ``bwd``.

    Args:
        f: ``f(*args) -> out``, an array or a nest of arrays.
        fwd: ``fwd(*args) -> (out, residuals)``, called in place of ``f`` when a gradient is wanted.
            ``residuals`` is any nest; arrays in it must not be written before backward.
        bwd: ``bwd(residuals, dy) -> gradients``, one per argument and nested like it; None for no
            gradient. ``dy`` is nested like ``out``, zeros where an output was not used.
        differentiable_twice: ``fwd`` and ``bwd`` are written with nf functions (nothing on ``.raw``), so
            that gradients can be differentiated again. Residuals that ``fwd`` computes then keep the graph
            they come from until backward; an output among them is differentiated by this rule.

    Returns:
        A function of the same arguments. Those that are no arrays pass through.

    Raises:
        GradientError: (at backward) ``bwd`` returns other gradients than one per argument of its
            shape, or its result is differentiated without ``differentiable_twice``: it runs unrecorded.

    Example:
        >>> import nvfp as nf
        >>> clipped = nf.custom_vjp(lambda x: x, lambda x: (x, None), lambda _, dy: (nf.clip(dy, -1, 1),))
        >>> nf.grad(lambda x: nf.sum(clipped(x) * 5))(nf.asarray([1.0], device="cpu"))
        nf.array([1.])
        >>> cube = nf.custom_vjp(
        ...     lambda x: x**3, lambda x: (x**3, x), lambda x, dy: (dy * x * x * 3,), differentiable_twice=True
        ... )
        >>> nf.grad(nf.grad(cube))(nf.asarray(2.0, device="cpu"))
        nf.array(12.)
    """
    name = getattr(f, "__name__", "custom_vjp")
    defaults = bool(getattr(f, "__defaults__", None) or getattr(f, "__kwdefaults__", None))

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs or defaults:  # fwd and bwd count arguments by position
            bound = signature(f).bind(*args, **kwargs)
            bound.apply_defaults()
            args = bound.args
        inputs = list(leaves(args))
        if not needs_grad(*inputs):
            return f(*args)
        with enable_grad() if differentiable_twice else no_grad():
            out, residuals = fwd(*args)
        outputs = list(leaves(out))
        places = {id(o): i for i, o in enumerate(outputs)}
        saved = [Output(r, places[id(r)]) if id(r) in places and is_tracked(r) else r for r in leaves(residuals)]
        node = record(
            name, inputs, _rule(name, bwd, args, out, residuals), saved, outputs=len(outputs),
            differentiable_twice=differentiable_twice,
        )  # fmt: skip
        return _fill(out, [o._placed(node, i) for i, o in enumerate(outputs)])

    return wrapper


def _rule(name: str, bwd: Callable[[Any, Any], Sequence[Any]], args: Any, out: Any, residuals: Any) -> Any:
    """Make the tape's rule; it keeps shapes only, so the node holds nothing but its saved values."""
    inputs, outputs, kept = map_leaves(_Like, args), map_leaves(_Like, out), map_leaves(lambda _: None, residuals)

    def rule(saved: tuple[Any, ...], dy: Any, needs: tuple[bool, ...]) -> list[Any]:
        likes = list(leaves(outputs))
        given = (dy,) if len(likes) == 1 else dy
        whole = [like.zeros() if d is None else d for d, like in zip(given, likes, strict=True)]
        return list(_matched(name, inputs, bwd(_fill(kept, saved), _fill(outputs, whole))))

    return rule
