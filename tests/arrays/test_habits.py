"""Habits of NumPy, torch and JAX users: errors that stay what Python makes of them and name nvfp's spelling."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.arrays.habits import _ATTRIBUTES, explained
from nvfp.errors import ArgumentError, DTypeError, IntegerOverflowError, NvfpError, UnknownNameError
from tests.arrays.test_arguments import FORM

ATTRIBUTES = {
    "numpy": "write nf.asnumpy(x)",
    "cpu": 'write x.to_device("cpu")',
    "cuda": 'write x.to_device("cuda")',
    "to": "write x.to_device(device) or x.astype(dtype)",
    "float": "write x.astype(nf.float32)",
    "view": "write x.reshape(shape)",
    "numel": "write x.size",
    "exp": "write nf.exp(x)",
    "diff": "write nf.diff(x)",
    "searchsorted": "write nf.searchsorted(x)",
    "tobytes": "compute it with NumPy: nf.asnumpy(x).tobytes",
    "shpae": "see dir(nf.Array) and the functions of nf",
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_other_libraries(name: str, device: Any) -> None:
    x = nf.ones((2,))
    with pytest.raises(AttributeError) as caught:
        getattr(x, name)
    assert isinstance(caught.value, UnknownNameError) and FORM.fullmatch(str(caught.value))
    assert str(caught.value).endswith(ATTRIBUTES[name])
    assert caught.value.name == name and caught.value.obj is x
    assert not hasattr(x, name) and getattr(x, name, 3) == 3


def test_the_table_names_no_attribute_that_is_there(device: Any) -> None:
    x, q = nf.ones((2, 2)), nf.ones((2, 32)).astype(nf.mxfp8)
    assert not [name for name in _ATTRIBUTES if hasattr(x, name) or hasattr(q, name)]


def test_arrays_still_copy_pickle_and_answer_protocols(device: Any) -> None:
    x, q = nf.ones((2,)), nf.ones((2, 32)).astype(nf.nvfp4)
    for a in (x, q):
        for made in (copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
            assert nf.array_equal(made, a)
        assert not hasattr(a, "__array_interface__") and not hasattr(a, "_repr_html_")
    with pytest.raises(AttributeError, match=r"\[QuantizedArray\.numpy\] .*write nf\.asnumpy\(x\)"):
        _ = q.numpy


CALLS: dict[str, tuple[str, Callable[[], Any]]] = {
    "x.sum(dim=0)": (r"\[sum\] .*got dim=0; write axis=", lambda: nf.ones((2,)).sum(dim=0)),  # type: ignore[call-arg]
    "nf.sum(x, dim=0)": (r"\[sum\] .*got dim=0; write axis=", lambda: nf.sum(nf.ones((2,)), dim=0)),  # type: ignore
    "keepdim": (r"got keepdim=True; write keepdims=", lambda: nf.ones((2,)).max(keepdim=True)),  # type: ignore
    "ddof": (r"\[var\] .*got ddof=1; write correction=", lambda: nf.ones((2,)).var(ddof=1)),  # type: ignore[call-arg]
    "concat dim": (r"\[concat\] .*write axis=", lambda: nf.concat([nf.ones((2,))], dim=0)),  # type: ignore[call-arg]
    "pad value": (r"\[pad\] .*write constant_values=", lambda: nf.pad(nf.ones((2,)), 1, value=2)),  # type: ignore
    "einsum": (r"expected no keywords, got optimize=True", lambda: nf.einsum("i", nf.ones((2,)), optimize=True)),  # type: ignore
    "dot": (r"\[dot\] expected no keywords, got out=None", lambda: nf.dot(nf.ones((2,)), nf.ones((2,)), out=None)),  # type: ignore
    "zeros": (r"\[zeros\] .*got \(2, 3\); write zeros\(\(2, 3\)\)", lambda: nf.zeros(2, 3)),  # type: ignore
    "zeros dtype": (r"\[zeros\] .*name the others: dtype=", lambda: nf.zeros((2,), nf.int8)),  # type: ignore
    "array dtype": (r"\[array\] .*name the others: dtype=", lambda: nf.array([1], nf.int8)),  # type: ignore
    "sum keepdims": (r"\[sum\] .*name the others: dtype=, keepdims=", lambda: nf.ones((2,)).sum(0, True)),  # type: ignore
    "sum nothing": (r"\[sum\] expected arguments that fit sum\(x, /, axis=None", lambda: nf.sum()),  # type: ignore
    "unknown": (r"\[mean\] .*got where='array'; leave it out", lambda: nf.mean(nf.ones((2,)), where="array")),  # type: ignore
    "normal": (r"\[normal\] .*name the shape: normal\(size=\(2, 3\)\)", lambda: rng().normal((2, 3))),
    "uniform": (r"\[uniform\] .*name the shape", lambda: rng().uniform((2, 3))),
    "integers": (r"\[integers\] .*name the shape", lambda: rng().integers(10, (2, 3))),  # type: ignore[arg-type]
    "random": (r"\[random\] .*write random\(\(2, 3\)\)", lambda: rng().random(2, 3)),  # type: ignore[misc]
    "normal shape": (r"\[normal\] .*write size=", lambda: rng().normal(shape=(2,))),  # type: ignore[call-arg]
}


def rng() -> Any:
    return nf.random.default_rng(0)


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_another_spelling(name: str, device: Any) -> None:
    text, call = CALLS[name]
    with pytest.raises(DTypeError, match=text) as caught:
        call()
    assert isinstance(caught.value, TypeError) and FORM.fullmatch(str(caught.value))


def test_errors_from_inside_pass_through() -> None:
    def inner() -> None:
        raise TypeError("mine")

    @explained
    def outer(x: int) -> int:
        """Documented."""
        inner()
        return x

    with pytest.raises(TypeError, match=r"^mine$"):
        outer(1)
    assert outer.__doc__ == "Documented." and str(inspect.signature(outer)) == "(x: 'int') -> 'int'"
    assert outer.__globals__ is globals() and nf.sum.__module__ == "nvfp.arrays.functions.reductions"


@pytest.mark.parametrize("value", [300, -129, [1, 300], [[1], [2**40]], 2**70, (np.int64(300),)], ids=str)
def test_integers_that_do_not_fit(value: Any, device: Any) -> None:
    for call in (lambda: nf.asarray(value, dtype=nf.int8), lambda: nf.array(value, dtype="int8")):
        with pytest.raises(OverflowError) as caught:
            call()
        assert isinstance(caught.value, IntegerOverflowError | ArgumentError) and FORM.fullmatch(str(caught.value))
    with pytest.raises(OverflowError):
        np.asarray(value, dtype=np.int8)


def test_integers_that_fit_or_wrap(device: Any) -> None:
    assert nf.asarray([-128, 127], dtype=nf.int8).tolist() == [-128, 127]
    assert nf.asarray(2**64 - 1, dtype=nf.uint64).item() == 2**64 - 1
    assert nf.asarray(np.array([300]), dtype=nf.int8).tolist() == [44]
    assert nf.asarray([True, False], dtype=nf.uint8).tolist() == [1, 0]
    assert nf.asarray([2**70, 0.5], dtype=nf.float32).tolist() == [2.0**70, 0.5] == nf.asarray([2**70, 0.5]).tolist()
    for call in (lambda: nf.asarray(2**70), lambda: nf.asarray(2**2000, dtype=nf.float32)):
        with pytest.raises(OverflowError, match=r"\[asarray\] expected integers within"):
            call()
    with pytest.raises(OverflowError, match=r"\[full\] expected a number that int8 holds, got 300"):
        nf.full((2,), 300, dtype=nf.int8)


def test_devices_that_are_no_names(device: Any) -> None:
    for wrong in (["cpu"], 3, {"a": 1}):
        with pytest.raises(NvfpError, match=r"\[Device\] expected 'cpu', 'cuda' or 'cuda:N', got"):
            nf.ones((2,)).to_device(wrong)  # type: ignore[arg-type]
