"""`grad`, `value_and_grad`, `vjp`, `custom_vjp`, `check_grads` over real arrays."""

from __future__ import annotations

import gc
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

import nvfp as nf
from nvfp.autograd import check_grads, on_backward_end
from nvfp.errors import ArgumentError, GradientError


def square_sum(x: Any) -> Any:
    return (x * x).sum()


def test_value_and_grad_writes_nothing() -> None:
    x = nf.asarray([1.0, 2.0], requires_grad=True)
    value, gradient = nf.value_and_grad(square_sum)(x)
    assert value.item() == 5.0 and not value.requires_grad
    assert gradient.tolist() == [2.0, 4.0] and not gradient.requires_grad and x.grad is None


def test_argnums_and_repeated_argument() -> None:
    x, y = nf.asarray(3.0), nf.asarray(4.0)
    f = lambda a, b: a * a * b  # noqa: E731
    assert nf.grad(f, argnums=1)(x, y).item() == 9.0
    assert [g.item() for g in nf.grad(f, argnums=(0, -1))(x, y)] == [24.0, 9.0]
    assert [g.item() for g in nf.grad(f, argnums=(0, 1))(x, x)] == [18.0, 9.0]


class Pair(NamedTuple):
    a: Any
    b: Any


def test_nested_arguments_pass_other_leaves_through() -> None:
    tree = {"w": nf.asarray([2.0]), "deep": [(nf.asarray([3.0]), 7), Pair(nf.asarray([1, 2]), "text")], "none": None}

    def f(p: Any) -> Any:
        assert p["deep"][1].b == "text" and p["none"] is None
        return (p["w"] * p["deep"][0][0] * p["deep"][0][1]).sum()

    g = nf.grad(f)(tree)
    assert g["w"].tolist() == [21.0] and g["deep"][0][0].tolist() == [14.0]
    assert g["deep"][0][1] is None and g["deep"][1] == Pair(None, None) and g["none"] is None


def test_aux_and_keywords() -> None:
    x = nf.asarray([1.0, 2.0])
    f = lambda x, scale: ((x * scale).sum(), {"x2": x * 2})  # noqa: E731
    (value, aux), g = nf.value_and_grad(f, has_aux=True)(x, scale=3.0)
    assert value.item() == 9.0 and g.tolist() == [3.0, 3.0] and not aux["x2"].requires_grad
    g, aux = nf.grad(f, has_aux=True)(x, scale=3.0)
    assert g.tolist() == [3.0, 3.0] and aux["x2"].tolist() == [2.0, 4.0]


def test_unused_variable_gets_zeros() -> None:
    a, b = nf.grad(lambda a, b: a.sum(), argnums=(0, 1))(nf.ones((2,)), nf.ones((3,), dtype=nf.bfloat16))
    assert a.tolist() == [1.0, 1.0] and b.tolist() == [0.0] * 3 and b.dtype == nf.bfloat16


def test_errors_name_what_to_do() -> None:
    x = nf.asarray([1.0, 2.0])
    with pytest.raises(GradientError, match=r"\[value_and_grad\] expected a function that returns a 0-d .*sum it"):
        nf.grad(lambda x: x)(x)
    with pytest.raises(ArgumentError, match="argnums"):
        nf.grad(square_sum, argnums=1)(x)
    with pytest.raises(ArgumentError, match="floating array"):
        nf.grad(square_sum)(nf.asarray([1, 2]))
    with pytest.raises(ArgumentError, match=r"nf\.asarray"):
        nf.grad(square_sum)(np.ones(2))
    with pytest.raises(ArgumentError, match="has_aux"):
        nf.grad(square_sum, has_aux=True)(x)


def test_works_inside_no_grad_and_leaves_no_graph() -> None:
    with nf.no_grad():
        value, g = nf.value_and_grad(square_sum)(nf.asarray([1.0, 2.0], requires_grad=True))
    assert g.tolist() == [2.0, 4.0] and not g.requires_grad and not value.requires_grad


def test_gradients_of_gradients() -> None:
    f = lambda x: nf.sin(x) * x * x  # noqa: E731
    for order, expected in enumerate([1.2189, 1.7798, -0.3155], start=1):
        d = f
        for _ in range(order):
            d = nf.grad(d)
        x = 0.9
        h = 1e-3
        values = [float(np.sin(v) * v * v) for v in (x - 2 * h, x - h, x, x + h, x + 2 * h)]
        del expected
        finite = {1: (values[3] - values[1]) / (2 * h), 2: (values[3] - 2 * values[2] + values[1]) / h**2,
                  3: (values[4] - 2 * values[3] + 2 * values[1] - values[0]) / (2 * h**3)}[order]  # fmt: skip
        assert float(d(nf.asarray(x, dtype=nf.float64))) == pytest.approx(finite, rel=1e-3)


def test_gradient_penalty_reaches_closed_over_variables() -> None:
    w = nf.asarray([2.0, 3.0], requires_grad=True)
    x = nf.asarray([1.0, 1.0])
    g = nf.grad(lambda x: (w * x * x).sum())(x)  # 2 w x
    assert g.requires_grad
    (g * g).sum().backward()  # sum (2 w x)^2 -> 8 w x^2
    assert w.grad is not None and w.grad.tolist() == [16.0, 24.0]


def test_second_derivative_of_a_function_of_two() -> None:
    f = lambda x, y: x * x * y  # noqa: E731
    mixed = nf.grad(lambda x, y: nf.grad(f, argnums=1)(x, y), argnums=0)
    assert mixed(nf.asarray(3.0), nf.asarray(5.0)).item() == 6.0


def test_only_paths_to_the_variables_are_walked() -> None:
    calls: list[str] = []

    def marked(name: str) -> Any:
        def fwd(x: Any) -> Any:
            return x * 1.0, None

        def bwd(_: Any, dy: Any) -> Any:
            calls.append(name)
            return (dy,)

        return nf.custom_vjp(lambda x: x * 1.0, fwd, bwd)

    a, b = marked("a"), marked("b")
    w = nf.asarray([2.0], requires_grad=True)
    with nf.no_grad():
        pass
    nf.grad(lambda x: (a(x) * b(w)).sum())(nf.asarray([1.0]))
    assert calls == ["a"]


def test_vjp_can_be_pulled_again_and_through_nests() -> None:
    x = nf.asarray([1.0, 2.0])
    out, pull = nf.vjp(lambda x: {"a": x * x, "b": (x.sum(),)}, x)
    dy = {"a": nf.asarray([1.0, 1.0]), "b": (nf.asarray(10.0),)}
    assert out["b"][0].item() == 3.0 and not out["a"].requires_grad
    assert pull(dy)[0].tolist() == [12.0, 14.0] and pull(dy)[0].tolist() == [12.0, 14.0]
    with pytest.raises(GradientError, match=r"\[vjp\] expected gradients of shapes"):
        pull({"a": nf.asarray([1.0]), "b": (nf.asarray(1.0),)})


def test_step_ends_once_per_value_and_grad_also_when_nested() -> None:
    log: list[int] = []
    remove = on_backward_end(lambda: log.append(1))
    try:
        nf.grad(nf.grad(lambda x: x * x * x))(nf.asarray(2.0))
        assert log == [1]
        with pytest.raises(KeyError):
            nf.grad(lambda x: {}["no"])(nf.asarray(2.0))
        assert log == [1]
    finally:
        remove()


def test_custom_vjp_rule_and_its_errors() -> None:
    def fwd(x: Any, p: Any) -> Any:
        return {"y": x * p["s"]}, (x, p["s"])

    def bwd(residuals: Any, dy: Any) -> Any:
        x, s = residuals
        return dy["y"] * s * 100, {"s": (dy["y"] * x).sum(), "name": None}

    f = nf.custom_vjp(lambda x, p: {"y": x * p["s"]}, fwd, bwd)
    x, p = nf.asarray([1.0, 2.0]), {"s": nf.asarray(3.0), "name": "n"}
    assert f(x, p)["y"].tolist() == [3.0, 6.0]
    gx, gp = nf.grad(lambda x, p: f(x, p)["y"].sum(), argnums=(0, 1))(x, p)
    assert gx.tolist() == [300.0, 300.0] and gp["s"].item() == 3.0 and gp["name"] is None
    bad = nf.custom_vjp(lambda x: x * 1, lambda x: (x * 1, None), lambda r, dy: (dy, dy))
    with pytest.raises(GradientError, match="gradients nested like tuple of 1"):
        nf.grad(lambda x: bad(x).sum())(x)
    bad = nf.custom_vjp(lambda x: x * 1, lambda x: (x * 1, None), lambda r, dy: (dy.sum(),))
    with pytest.raises(GradientError, match=r"a gradient of shape \(2,\) from bwd, got \(\)"):
        nf.grad(lambda x: bad(x).sum())(x)
    with pytest.raises(GradientError, match="first derivatives only"):
        nf.grad(lambda x: nf.grad(lambda x: f(x, p)["y"].sum())(x).sum())(x)


def test_custom_vjp_unused_outputs_get_zeros() -> None:
    f = nf.custom_vjp(
        lambda x: (x * 1, x * 2), lambda x: ((x * 1, x * 2), None), lambda r, dy: (dy[0] + 10 * dy[1],)
    )  # fmt: skip
    assert nf.grad(lambda x: f(x)[1].sum())(nf.asarray([1.0])).tolist() == [10.0]


def test_check_grads_finds_a_wrong_rule() -> None:
    wrong = nf.custom_vjp(lambda x: x * x, lambda x: (x * x, x), lambda x, dy: (dy * x,))
    with pytest.raises(GradientError, match="finite differences"):
        check_grads(wrong, [nf.asarray([1.0, 2.0], dtype=nf.float64)])


def test_arguments_may_be_rebound_inside() -> None:
    def f(x: Any) -> Any:
        x *= 3.0
        x[0] = x[1] * x[1]
        return (x * nf.asarray([1.0, 10.0])).sum()

    x = nf.asarray([1.0, 2.0])
    assert nf.grad(f)(x).tolist() == [0.0, 66.0] and x.tolist() == [1.0, 2.0]


def test_variables_of_a_graph_may_be_arguments() -> None:
    """Parameters are passed to `value_and_grad` all the time: no graph is kept, no .grad is written."""
    p = nf.parameter(nf.asarray([1.0, 2.0]))
    value, g = nf.value_and_grad(square_sum)(p)
    assert not value.requires_grad and not g.requires_grad and p.grad is None and g.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("argnums", [(0, 0), (0, -2), "a", (0, 1.0), 2, ()], ids=repr)
def test_argnums_that_are_no_different_positions_are_refused(argnums: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\[value_and_grad\] expected argnums that name different"):
        nf.grad(lambda a, b: (a * b).sum(), argnums=argnums)(nf.asarray([1.0]), nf.asarray([3.0]))


def residuals_of(kind: str) -> Any:
    """``exp(x) * x`` with a rule that keeps inputs, outputs or something computed in between."""

    def fwd(x: Any) -> Any:
        e = nf.exp(x)
        y = e * x
        return y, {"inputs": (x,), "outputs": (y, x), "computed": (e, x)}[kind]

    def bwd(residuals: Any, dy: Any) -> Any:
        if kind == "inputs":
            e, x = nf.exp(residuals[0]), residuals[0]
        else:
            e, x = (residuals[0] / residuals[1] if kind == "outputs" else residuals[0]), residuals[1]
        return (dy * (e * x + e),)

    return nf.custom_vjp(lambda x: nf.exp(x) * x, fwd, bwd, differentiable_twice=True)


@pytest.mark.parametrize("kind", ["inputs", "outputs", "computed"])
def test_custom_vjp_differentiated_again(kind: str) -> None:
    check_grads(residuals_of(kind), [nf.asarray([0.5, 1.5], dtype=nf.float64)], order=3)


def test_custom_vjp_takes_keywords_defaults_and_other_values() -> None:
    def f(x: Any, n: int, name: str = "cube", *, scale: float = 1.0) -> Any:
        return x**n * scale

    def fwd(x: Any, n: int, name: str = "cube", *, scale: float = 1.0) -> Any:
        return f(x, n, name), (x, n, name)

    power = nf.custom_vjp(f, fwd, lambda r, dy: (dy * r[0] ** (r[1] - 1) * r[1], None, None))
    x = nf.asarray([2.0, 3.0])
    assert nf.grad(lambda x: power(x, 3).sum())(x).tolist() == [12.0, 27.0]
    assert nf.grad(lambda x: power(x, name="square", n=2).sum())(x).tolist() == [4.0, 6.0]


def test_custom_vjp_leaves_no_graph_behind() -> None:
    gc.disable()
    try:
        for kind in ("inputs", "outputs", "computed"):
            x = nf.asarray([0.5, 1.5], requires_grad=True)
            y = residuals_of(kind)(x)
            node, saved = weakref.ref(y._node), [weakref.ref(v) for v in y._node.saved if isinstance(v, nf.Array)]
            y.sum().backward()
            assert all(v() is None for v in saved)
            del y
            assert node() is None
    finally:
        gc.enable()


def test_no_grad_inside_a_function_makes_constants() -> None:
    def f(x: Any) -> Any:
        with nf.no_grad():
            factor = x * x
            hidden = nf.custom_vjp(lambda v: v * 1, lambda v: (v * 1, None), lambda r, dy: (dy,))(x)
        assert not factor.requires_grad and not hidden.requires_grad
        return (factor * x + hidden).sum()

    assert nf.grad(f)(nf.asarray([2.0, 3.0])).tolist() == [4.0, 9.0]
    assert nf.grad(lambda x: nf.grad(f)(x).sum())(nf.asarray([2.0, 3.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_gradients_of_scalars_and_empty_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    x = nf.full(shape, 0.5, dtype=dtype)
    row = nf.full((3,), 2.0, dtype=dtype)
    functions = (
        lambda x: x * x, nf.exp, lambda x: nf.sum(x), lambda x: nf.reshape(x, (-1,)),
        lambda x: nf.concat([nf.ravel(x)] * 2), lambda x: nf.mean(x) if x.size else nf.mean(x, axis=0),
        lambda x: x @ x if x.ndim == 1 else x, lambda x: nf.expand_dims(x, 0), lambda x: nf.where(x > 0, x, 0.0),
        lambda x: nf.prod(x), lambda x: nf.cumsum(x), lambda x: x[..., None] * row,
        lambda x: nf.var(nf.ravel(x), correction=-1),
        lambda x: nf.sort(nf.ravel(x)), lambda x: nf.linalg.vector_norm(x), lambda x: nf.pad(nf.ravel(x), 1),
    )  # fmt: skip
    for f in functions:
        out, pull = nf.vjp(f, x)
        (g,) = pull(nf.ones_like(out))
        assert g.shape == shape and g.dtype == x.dtype
        assert bool(nf.all(nf.isfinite(g)))


def test_gradients_do_not_alias_what_the_user_holds() -> None:
    """Rules may pass `dy` on as it is: writing a gradient in place changes neither it nor another gradient."""
    x, y = nf.asarray([1.0, 2.0], requires_grad=True), nf.asarray([3.0, 4.0], requires_grad=True)
    dy = nf.asarray([1.0, 1.0])
    (x + y).backward(dy)
    assert x.grad is not None and y.grad is not None
    x.grad.storage.write_(np.zeros(2, np.float32) if x.device.type == "cpu" else x.grad.raw * 0)
    assert dy.tolist() == [1.0, 1.0] and y.grad.tolist() == [1.0, 1.0]


def test_nests_of_every_kind_and_argnums_of_nests() -> None:
    p = {"a": [nf.asarray([1.0]), (nf.asarray([2.0]), None)], "b": {}}
    q = Pair(nf.asarray(3.0), [nf.asarray(4.0, dtype=nf.bfloat16), "x"])
    f = lambda n, p, q: ((p["a"][0] * q.a + p["a"][1][0] * q.b[0]).sum() * n, {"aux": [p["a"][0]]})  # noqa: E731
    (value, aux), (gp, gq) = nf.value_and_grad(f, argnums=(1, -1), has_aux=True)(2, p, q)
    assert value.item() == 22.0 and not aux["aux"][0].requires_grad
    assert gp["a"][0].tolist() == [6.0] and gp["a"][1][0].tolist() == [8.0] and gp["a"][1][1] is None and gp["b"] == {}
    assert gq.a.item() == 2.0 and gq.b[0].item() == 4.0 and gq.b[0].dtype == nf.bfloat16 and gq.b[1] is None
    hessian = nf.grad(lambda p: nf.grad(lambda q: f(1, p, q)[0])(q).a)(p)
    assert hessian["a"][0].tolist() == [1.0] and hessian["a"][1][0].tolist() == [0.0]


def test_vjp_may_be_differentiated() -> None:
    """The pull-back is linear in dy and depends on x: both derivatives are there."""
    x, dy = nf.asarray([1.0, 2.0], dtype=nf.float64), nf.asarray([3.0, 5.0], dtype=nf.float64)
    check_grads(lambda x, dy: nf.vjp(lambda v: nf.sin(v) * v, x)[1](dy)[0], [x, dy], order=2)


def test_pull_backs_take_numbers_and_numpy_arrays() -> None:
    x = nf.asarray([1.0, 2.0], device="cpu")
    assert nf.vjp(lambda x: x * x, x)[1](np.array([1.0, 10.0]))[0].tolist() == [2.0, 40.0]
    assert nf.vjp(lambda x: (x * x).sum(), x)[1](2.0)[0].tolist() == [4.0, 8.0]
    with pytest.raises(GradientError, match=r"\[vjp\] expected gradients of shapes .* got \['str'\]"):
        nf.vjp(lambda x: x * x, x)[1]("text")
