"""What users of NumPy, torch and JAX type by habit, told in nvfp's spelling: for error messages only."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from nvfp.arrays.registry import find, nf
from nvfp.errors import DTypeError, UnknownNameError, message

F = TypeVar("F", bound=Callable[..., Any])

# NumPy's name -> the array API's, where they differ.
STANDARD = {
    "float_power": "pow", "fabs": "abs", "true_divide": "divide", "mod": "remainder", "rint": "round",
    "around": "round", "invert": "bitwise_invert", "bitwise_not": "bitwise_invert", "conjugate": "conj", "fix": "trunc",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift",
    "absolute": "abs", "power": "pow", "amax": "max", "amin": "min",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
}  # fmt: skip

# Names of the root elsewhere -> what to write here.
_ROOT = {
    **dict.fromkeys(("ndarray", "Tensor"), "nf.Array"), **dict.fromkeys(("tensor", "as_tensor"), "nf.asarray(x)"),
    "from_numpy": "nf.asarray(x)", "ascontiguousarray": "nf.asarray(x) (functions take any strides), or x.copy()",
    "float": "nf.float32", "double": "nf.float64", "half": "nf.float16", "int": "nf.int32", "long": "nf.int64",
    "bool_": "nf.bool", "complex": "nf.complex64", "cat": "nf.concat", "mm": "nf.matmul", "bmm": "nf.matmul",
    "clamp": "nf.clip", "unsqueeze": "nf.expand_dims", "rand": "nf.random.default_rng().uniform(size=shape)",
    "randn": "nf.random.default_rng().normal(size=shape)",
    "set_printoptions": "numpy.set_printoptions(...): it applies",
    "printoptions": "numpy.printoptions(...): it applies", "errstate": "nothing: results are IEEE's, without warnings",
    "row_stack": "nf.vstack", "fmax": "nf.where(nf.isnan(x), y, nf.maximum(x, y))",
    "relu": "nf.nn.functional.activation",
    "fmin": "nf.where(nf.isnan(x), y, nf.minimum(x, y))", "exp2": "nf.pow(2.0, x)", "cbrt": "nf.pow(x, 1 / 3)",
    "softmax": "nf.nn.functional.softmax", "jit": "nf.cuda_graph", "compile": "nf.cuda_graph",
    "copyto": "x[...] = value", "put": "x[indices] = values", "vectorize": "functions of whole arrays",
    "isreal": "nf.equal(nf.imag(x), 0)", "size": "x.size", "shape": "x.shape", "ndim": "x.ndim", "vsplit": "nf.split",
    "hsplit": "nf.split(x, n, axis=1)", "array_split": "nf.split with positions", "resize": "nf.reshape or nf.tile",
    "deg2rad": "x * (nf.pi / 180)", "rad2deg": "x * (180 / nf.pi)", "radians": "x * (nf.pi / 180)",
    "degrees": "x * (180 / nf.pi)", "in1d": "nf.isin", "rot90": "nf.flip(nf.swapaxes(x, 0, 1), axis=0)",
    "flipud": "nf.flip(x, axis=0)", "fliplr": "nf.flip(x, axis=1)", "rollaxis": "nf.moveaxis",
}  # fmt: skip

# Attributes of arrays elsewhere -> what to write here.
_ATTRIBUTES = {
    **dict.fromkeys(("numpy", "get"), "nf.asnumpy(x)"),
    "cpu": 'x.to_device("cpu")', "cuda": 'x.to_device("cuda")', "to": "x.to_device(device) or x.astype(dtype)",
    "type": "x.astype(dtype)", "bool": "x.astype(nf.bool)", "int": "x.astype(nf.int32)", "long": "x.astype(nf.int64)",
    "float": "x.astype(nf.float32)", "double": "x.astype(nf.float64)", "half": "x.astype(nf.float16)",
    "bfloat16": "x.astype(nf.bfloat16)", "view": "x.reshape(shape)", "permute": "x.transpose(axes)", "t": "x.T",
    "unsqueeze": "nf.expand_dims(x, axis)", "expand": "nf.broadcast_to(x, shape)", "dim": "x.ndim",
    **dict.fromkeys(("numel", "nelement"), "x.size"), "element_size": "x.itemsize", "clone": "x.copy()",
    "contiguous": "x itself (functions take any strides), or x.copy()", "strides": "x.raw.strides",
    "data": "x.detach()", "detach_": "x.detach()", "requires_grad_": "x.requires_grad = True",
    "grad_fn": "x.requires_grad", "is_cuda": 'x.device.type == "cuda"', "zero_grad": "x.grad = None",
    "zero_": "x[...] = 0", **dict.fromkeys(("fill", "fill_", "copy_"), "x[...] = value"),
    "add_": "x += y", "sub_": "x -= y", "mul_": "x *= y", "div_": "x /= y",
    **dict.fromkeys(("mm", "bmm"), "x @ y"), "flat": "x.ravel()", "block_until_ready": "x (asking for a value waits)",
}  # fmt: skip

# Keywords elsewhere -> keywords here, the first that the function has.
_KEYWORDS = {
    "dim": ("axis", "axes"), "dims": ("axis", "axes"), "keepdim": ("keepdims",), "ddof": ("correction",),
    "unbiased": ("correction",), "shape": ("size",), "size": ("shape",), "value": ("constant_values", "fill_value"),
    "repeats": ("repetitions",), "reps": ("repetitions",), "pad_width": ("widths",), "chunks": ("sections",),
}  # fmt: skip


def missing(x: object, name: str) -> UnknownNameError:
    """Return the error for an attribute that an array does not have; it tells what serves instead.

    Args:
        x: the array.
        name: the attribute.

    Example:
        >>> print(missing(None, "cpu"))
        [NoneType.cpu] expected an attribute of NoneType, got 'cpu'; write x.to_device("cpu")
    """
    kind = type(x).__name__
    if name.startswith("__"):  # protocols ask for these often
        return UnknownNameError(f"{kind!r} object has no attribute {name!r}", name=name, obj=x)
    if name in _ATTRIBUTES:
        do = f"write {_ATTRIBUTES[name]}"
    elif find(name) is not None:
        do = f"write nf.{name}(x)"
    elif hasattr(np.ndarray, name):
        do = f"compute it with NumPy: nf.asnumpy(x).{name}"
    else:
        do = f"see dir(nf.{kind}) and the functions of nf"
    return UnknownNameError(message(f"{kind}.{name}", f"an attribute of {kind}", repr(name), do), name=name, obj=x)


def unknown(name: str) -> UnknownNameError:
    """Return the error for a name that the root does not have; it tells what serves instead.

    Args:
        name: what was asked of ``nvfp``.

    Example:
        >>> print(unknown("arcsin"))
        [nvfp.arcsin] expected a name of nvfp, got 'arcsin'; write nf.asin
    """
    if name in _ROOT:
        do = f"write {_ROOT[name]}"
    elif name in STANDARD and find(STANDARD[name]) is not None:
        do = f"write nf.{STANDARD[name]}"
    elif space := next((space for space in ("linalg", "fft") if find(f"{space}.{name}") is not None), ""):
        do = f"write nf.{space}.{name}"
    elif callable(getattr(np, name, None)):
        do = f"compute it with NumPy: nf.asarray(numpy.{name}(nf.asnumpy(x)))"
    else:
        near = get_close_matches(name, vars(nf), n=3)
        do = f"see dir(nvfp){', or is it one of ' + ', '.join(near) if near else ''}"
    return UnknownNameError(message(f"nvfp.{name}", "a name of nvfp", repr(name), do), name=name)


def explained(function: F) -> F:
    """Turn a call that does not fit the signature into a typed error that names nvfp's spelling (decorator).

    Args:
        function: with a signature of its own; errors raised inside pass through.

    Returns:
        The function, documented alike.
    """
    explain = _misfit

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside
            raise explain(function, args, kwargs, error) from None

    # In the namespace of its module, so that doctest counts its examples to that.
    code, closure = call.__code__, call.__closure__
    own = FunctionType(code, function.__globals__, function.__name__, None, closure)
    return update_wrapper(own, function)  # type: ignore[return-value]


def _misfit(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError) -> DTypeError:
    op, parameters = function.__name__, dict(signature(function).parameters)
    if next(iter(parameters), "") == "self":
        parameters.pop("self")
        args = args[1:]
    named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for name, value in kwargs.items():
        if name not in named:
            own = next((n for n in _KEYWORDS.get(name, ()) if n in parameters), None)
            do = f"write {own}=" if own in named else f"pass {own} by position" if own else "leave it out"
            shown = value if isinstance(value, bool | int | float | str | tuple | None) else type(value).__name__
            expected = f"keywords out of {', '.join(named)}" if named else "no keywords"
            return DTypeError(message(op, expected, f"{name}={shown!r}", do))
    count = sum(p.kind is not Parameter.KEYWORD_ONLY for p in parameters.values())
    if len(args) > count:
        lengths = all(isinstance(a, int) and not isinstance(a, bool) for a in args)
        if lengths and count == 1 and next(iter(parameters)) in ("shape", "size"):
            return DTypeError(message(op, "the shape as one tuple", args, f"write {op}({args})"))
        rest = ", ".join(f"{n}=" for n, p in parameters.items() if p.kind is Parameter.KEYWORD_ONLY)
        do = f"name the others: {rest}" if rest else "leave the others out"
        return DTypeError(message(op, f"at most {count} arguments by position", len(args), do))
    bare = Signature([p.replace(annotation=Parameter.empty) for p in parameters.values()])
    return DTypeError(message(op, f"arguments that fit {op}{bare}", error, "pass these"))
