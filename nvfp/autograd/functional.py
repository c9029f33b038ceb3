"""`grad`, `value_and_grad` and `vjp`: gradients of functions of (nested) array arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from nvfp.autograd.grad_mode import enable_grad, grad_enabled
from nvfp.autograd.protocol import is_tracked
from nvfp.autograd.region import region
from nvfp.autograd.tape import Leaf, Node
from nvfp.autograd.trees import leaves, map_leaves
from nvfp.autograd.walk import Place, backward, paths
from nvfp.errors import ArgumentError, GradientError, message


def _pass_on(saved: tuple[Any, ...], dy: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    return (dy,)


class _Variables:
    """The arguments of one call with fresh places in the graph, and their gradients afterwards.

    What an enclosing `grad` or graph computed becomes the output of an identity node, so that it is
    seen through; any other argument, the caller's own variables too, becomes a new leaf. So nothing
    is written to the caller's arrays.
    """

    def __init__(self, op: str, arguments: Sequence[Any], chosen: Sequence[int]) -> None:
        self.op = op
        self.arrays: list[Any] = []
        self.places: list[Place] = []
        self.since = Node("arguments", (), _pass_on, (), 1, True).sequence
        self.args = list(arguments)
        for i in chosen:
            before = len(self.places)
            self.args[i] = map_leaves(self._variable, arguments[i])
            if len(self.places) == before:
                kind = f", dtype {arguments[i].dtype}" if is_tracked(arguments[i]) else ""
                text = f"argument {i} of type {type(arguments[i]).__name__}{kind}"
                raise ArgumentError(
                    message(
                        op, "a floating array or a nest that holds one", text, "pass nf.asarray(...), or other argnums"
                    )
                )
        self.chosen = chosen

    def _variable(self, leaf: Any) -> Any:
        if not is_tracked(leaf):
            if hasattr(leaf, "__array_namespace__"):
                text = f"{type(leaf).__module__}.{type(leaf).__name__}"
                raise ArgumentError(
                    message(self.op, "nf arrays to differentiate by", text, "convert it with nf.asarray")
                )
            return leaf
        if not leaf._differentiable:
            return leaf
        outer = leaf._node
        place: Place
        if outer is not None and (type(outer) is Node or outer.temporary) and grad_enabled():  # type: ignore[union-attr]
            place = Node("argument", ((outer, leaf._index),), _pass_on, (), 1, True)
        else:
            place = Leaf(leaf.shape, temporary=True)
        self.arrays.append(leaf)
        self.places.append(place)
        return leaf._placed(place)

    def pull(
        self, roots: Sequence[Any], gradients: Sequence[Any], *, connect: bool, retain: bool, wanted: set[Place]
    ) -> tuple[Any, ...]:
        """Return the gradients per chosen argument, nested like it (None for what is no variable)."""
        tracked = [(r, g) for r, g in zip(roots, gradients, strict=True) if r._node in wanted]
        found = iter(
            backward(
                [r for r, _ in tracked], [g for _, g in tracked],
                retain_graph=retain, create_graph=connect, targets=self.places, wanted=wanted,
            )
        )  # fmt: skip
        rest = iter(self.arrays)

        def gradient(leaf: Any) -> Any:
            if not (is_tracked(leaf) and leaf._differentiable):
                return None
            array, value = next(rest), next(found)
            return array.__array_namespace__().zeros_like(array) if value is None else value

        return tuple(map_leaves(gradient, self.args[i]) for i in self.chosen)

    def close(self) -> None:
        """Make the leaves constants: the caller has no use for their ``.grad``."""
        for place in self.places:
            if type(place) is Leaf:
                place.active = False


def _like(gradient: Any, root: Any) -> Any:
    """A number or an array of another library as an array like ``root``; others as they are."""
    if is_tracked(gradient) or not (isinstance(gradient, int | float) or hasattr(gradient, "__array__")):
        return gradient
    return root.__array_namespace__().asarray(gradient, dtype=root.dtype, device=root.device)


def _detach(tree: Any) -> Any:
    return map_leaves(lambda leaf: leaf._placed(None) if is_tracked(leaf) and leaf._node is not None else leaf, tree)


def _positions(op: str, argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    fits = all(isinstance(i, int) and -count <= i < count for i in chosen)
    if not chosen or not fits or len({i % count for i in chosen}) < len(chosen):
        text = f"{argnums} of {count} positional arguments"
        raise ArgumentError(
            message(op, "argnums that name different positional arguments", text, "pass the variables by position")
        )
    return tuple(i % count for i in chosen)


def _split(op: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ArgumentError(
            message(op, "a pair (value, aux) with has_aux=True", type(result).__name__, "return a tuple of two")
        )
    return result


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives ``f``'s value and its gradient.

    Args:
        f: takes arrays (or nested dicts, lists, tuples of them) and returns a scalar array.
        argnums: position of the argument to differentiate by, or several.
        has_aux: ``f`` returns ``(value, aux)``; ``aux`` is passed on, its arrays detached.

    Returns:
        ``g(*args, **kwargs) -> (value, gradient)``, or ``((value, aux), gradient)``. The gradient is
        nested like the argument, with None where it holds no floating array; a tuple of them when
        ``argnums`` is one. Variables that ``f`` does not use get zeros. Each gradient has its
        variable's shape. Nothing is written to any ``.grad``.

    Raises:
        ArgumentError: ``argnums`` out of range, or an argument without a floating nf array.
        GradientError: ``f`` does not return a scalar floating array.

    Notes:
        The arguments are the variables of this call alone, also if they are variables of a graph
        (``requires_grad``). What ``f`` closes over keeps its own: if that is tracked, the gradient is too.
        Works inside `nf.autocast`: the gradient is computed before the call returns, so a step ends
        with it. Calls nest: the gradient of a gradient is exact where rules allow it (fused rules of
        `nn.functional` raise by name).

    Example:
        >>> import nvfp as nf
        >>> f = nf.value_and_grad(lambda x: nf.sum(x * x))
        >>> f(nf.asarray([1.0, 2.0], device="cpu"))
        (nf.array(5.), nf.array([2., 4.]))
    """

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        outer = grad_enabled()
        variables = _Variables("value_and_grad", args, _positions("value_and_grad", argnums, len(args)))
        with region():
            with enable_grad():
                value, aux = _split("value_and_grad", f(*variables.args, **kwargs), has_aux)
            if not (is_tracked(value) and value.shape == () and value._differentiable):
                text = f"shape {value.shape}, dtype {value.dtype}" if is_tracked(value) else type(value).__name__
                raise GradientError(
                    message(
                        "value_and_grad", "a function that returns a 0-d floating array", text, "sum it, or use nf.vjp"
                    )
                )
            wanted, outside = paths([value], variables.places, variables.since)
            connect = outer and outside
            one = value.__array_namespace__().ones_like(value)
            gradients = variables.pull([value], [one], connect=connect, retain=False, wanted=wanted)
        variables.close()
        if not connect:
            value, aux = _detach(value), _detach(aux)
        result = (value, aux) if has_aux else value
        return result, gradients[0] if isinstance(argnums, int) else gradients

    return wrapper


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that gives ``f``'s gradient (with ``has_aux``: ``(gradient, aux)``).

    Errors and rules are those of `value_and_grad`.

    Args:
        f: as in `value_and_grad`.
        argnums: likewise.
        has_aux: likewise.

    Example:
        >>> import nvfp as nf
        >>> cube = nf.grad(lambda x: x * x * x)
        >>> cube(nf.asarray(2.0, device="cpu")), nf.grad(cube)(nf.asarray(2.0, device="cpu"))
        (nf.array(12.), nf.array(12.))
    """
    both = value_and_grad(f, argnums, has_aux)

    @wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapper


def vjp(f: Callable[..., Any], *args: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Compute ``f(*args)`` and return it with its pull-back.

    Args:
        f: takes arrays (or nests of them) and returns an array or a nest of them.
        args: its arguments; every floating array in them is a variable.
        has_aux: ``f`` returns ``(out, aux)``.

    Returns:
        ``(out, pull)`` or ``(out, pull, aux)``. ``pull(dy)`` takes gradients nested like ``out`` and
        returns a tuple of gradients, one per argument, nested like it. It may be called again.

    Raises:
        ArgumentError: an argument without a floating nf array.
        GradientError: ``dy`` does not match ``out``.

    Example:
        >>> import nvfp as nf
        >>> out, pull = nf.vjp(nf.exp, nf.asarray([0.0, 0.0], device="cpu"))
        >>> pull(nf.asarray([1.0, 3.0], device="cpu"))
        (nf.array([1., 3.]),)
    """
    variables = _Variables("vjp", args, range(len(args)))
    outer = grad_enabled()
    with enable_grad():
        out, aux = _split("vjp", f(*variables.args), has_aux)
    roots = list(leaves(out))
    if any(not is_tracked(root) for root in roots):
        text = next(type(root).__name__ for root in roots if not is_tracked(root))
        raise GradientError(
            message("vjp", "a function that returns nf arrays", text, "return other values as aux (has_aux=True)")
        )
    wanted, outside = paths(roots, variables.places, variables.since)
    variables.close()

    def pull(dy: Any) -> tuple[Any, ...]:
        gradients = list(leaves(dy))
        if len(gradients) == len(roots):
            gradients = [_like(g, root) for g, root in zip(gradients, roots, strict=True)]
        if [getattr(g, "shape", None) for g in gradients] != [r.shape for r in roots]:
            text = [getattr(g, "shape", type(g).__name__) for g in gradients]
            raise GradientError(
                message("vjp", f"gradients of shapes {[r.shape for r in roots]}", text, "nest them like the output")
            )
        connect = grad_enabled() and (outside or any(g._node is not None for g in gradients))
        return variables.pull(roots, gradients, connect=connect, retain=True, wanted=wanted)

    shown = (out, aux) if outer and outside else (_detach(out), _detach(aux))
    return (shown[0], pull, shown[1]) if has_aux else (shown[0], pull)
