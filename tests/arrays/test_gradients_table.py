"""Every public function: its gradient against finite differences, once and twice, a refusal by name, or a constant."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.arrays.array import Array
from nvfp.autograd import check_grads
from nvfp.autograd.tape import Node
from nvfp.autograd.trees import leaves
from nvfp.errors import GradientError
from tests.arrays.gradient_cases import CASES, FLAT, NO_INPUT, REFUSED, Case, drawn, public_functions

ONCE = [name for name, cases in CASES.items() if any(case.order == 1 for case in cases)]
WIDER = ("astype", "quantize", "dequantize", "requantize")  # their cases return another dtype


def arrays(case: Case, dtype: Any = None, **kwargs: Any) -> list[Any]:
    return [nf.asarray(a, dtype=dtype, device="cpu", **kwargs) for a in case.args]


def test_every_public_function_has_a_row() -> None:
    tables = (set(CASES), set(REFUSED), set(FLAT), NO_INPUT)
    known = set().union(*tables)
    assert sum(map(len, tables)) == len(known), "a name stands in two tables"
    assert not public_functions() - known, "add a row to tests/arrays/gradient_cases.py"
    assert not known - public_functions(), "rows without a function"


@pytest.mark.parametrize("name", CASES)
def test_finite_differences(name: str) -> None:
    for case in CASES[name]:
        if not case.quantized:
            check_grads(case.call, arrays(case), order=case.order, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ONCE)
def test_rules_for_once_raise_by_name_at_the_second_order(name: str) -> None:
    case = next(case for case in CASES[name] if case.order == 1)
    (x,) = arrays(case)
    with pytest.raises(GradientError, match=r"first derivatives only"):
        nf.grad(lambda x: nf.sum(nf.grad(lambda y: nf.sum(case.call(y)))(x)))(x)


@pytest.mark.parametrize("name", REFUSED)
def test_no_rule_raises_by_name(name: str) -> None:
    x = nf.asarray(drawn(2, 3, 4), device="cpu", requires_grad=True)
    with pytest.raises(GradientError, match=rf"\[{name}\]"):
        REFUSED[name](x)
    with nf.no_grad():
        REFUSED[name](x)


@pytest.mark.parametrize("name", FLAT)
def test_without_derivative_is_a_constant(name: str) -> None:
    x = nf.asarray(drawn(2, 3, 4), device="cpu", requires_grad=True)
    for part in leaves(FLAT[name](x)):
        assert not isinstance(part, Array) or (part.dtype.kind in "biu" and not part.requires_grad)


@pytest.mark.parametrize("name", CASES)
def test_gradients_have_the_dtype_and_shape_of_their_variable(name: str) -> None:
    for case, dtype in ((case, dtype) for case in CASES[name] for dtype in ("bfloat16", "float16")):
        args = [nf.astype(x, dtype) for x in arrays(case)]
        y, pull = nf.vjp(case.call, *args)
        assert y.dtype == dtype or name in WIDER or name.startswith(("fft.", "linalg.eig"))
        gradients = pull(nf.ones_like(y))
        for gradient, x in zip(gradients, args, strict=True):
            assert gradient.dtype == x.dtype and gradient.shape == x.shape
            assert bool(nf.all(nf.isfinite(gradient)))
        if not case.quantized and name not in ("linalg.eigh", "linalg.svd"):  # theirs cancel to nearly 0
            _check_precision(case, args, gradients, 2.0**-7 if dtype == "bfloat16" else 2.0**-10)


def _check_precision(case: Case, args: list[Any], gradients: tuple[Any, ...], limit: float) -> None:
    """Rules of several steps round once: two ulp of the largest element, of the function and of its rule."""
    out, pull = nf.vjp(case.call, *(x.astype("float64") for x in args))
    for gradient, exact in zip(gradients, map(nf.asnumpy, pull(nf.ones_like(out))), strict=True):
        error = np.abs(nf.asnumpy(gradient).astype(np.float64) - exact)
        assert error.size == 0 or error.max() <= limit * max(np.abs(exact).max(), 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_cuda_gradients_are_the_cpus(name: str) -> None:
    for case in (case for case in CASES[name] if not case.quantized):
        found = []
        for device in ("cpu", "cuda"):
            args = [nf.asarray(a, device=device).astype("float32") for a in case.args]
            y, pull = nf.vjp(case.call, *args)
            found.append(pull(nf.ones_like(y)))
        for on_cpu, on_cuda, x in zip(*found, case.args, strict=True):
            assert str(on_cuda.device).startswith("cuda") and on_cuda.shape == x.shape
            np.testing.assert_allclose(nf.asnumpy(on_cuda), nf.asnumpy(on_cpu), rtol=2e-3, atol=2e-3)


def nodes(place: Any) -> Iterator[Node]:
    """The nodes of a graph."""
    seen: set[int] = set()
    stack = [place]
    while stack:
        node = stack.pop()
        if type(node) is Node and id(node) not in seen:
            seen.add(id(node))
            yield node
            stack += [parent[0] for parent in node.parents if parent is not None]


def freed(reference: weakref.ref[Node]) -> bool:
    node = reference()
    return node is None or (node.vjp is None and not node.saved)


@pytest.mark.parametrize("name", CASES)
def test_no_graph_and_no_cycle_stay_behind(name: str) -> None:
    """With the collector off: nodes and what they saved go when the result goes; backward frees what was saved."""
    gc.disable()
    try:
        for case in CASES[name]:
            _check_memory(case)
    finally:
        gc.enable()


def _check_memory(case: Case) -> None:
    args = arrays(case, requires_grad=True)
    with nf.no_grad():
        assert all(not part.requires_grad for part in leaves(case.call(*args)))
    y = case.call(*args)
    if not y.requires_grad:  # the 0th power
        return
    graph = [weakref.ref(node) for node in nodes(y._node)]
    kept = [weakref.ref(v) for node in nodes(y._node) for v in node.saved if isinstance(v, Array)]
    nf.sum(y).backward()
    assert all(freed(r) for r in graph), "backward leaves rules or saved values behind"
    assert all(r() is None for r in kept), "something holds saved arrays after backward"
    dropped = case.call(*args)  # without a backward pass
    graph += [weakref.ref(node) for node in nodes(dropped._node)]
    nf.vjp(case.call, *args)[1](nf.ones_like(dropped.detach()))
    del y, dropped
    assert all(r() is None for r in graph), "a cycle keeps the graph"
