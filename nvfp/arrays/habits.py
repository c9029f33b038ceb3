"""What users of NumPy, torch and JAX type by habit, told in nvfp's spelling: for error messages only."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from sys import modules
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
    "row_stack": "nf.vstack",
    "relu": "nf.nn.functional.activation",
    "cbrt": "nf.pow(x, 1 / 3)",
    "softmax": "nf.nn.functional.softmax", "jit": "nf.cuda_graph", "compile": "nf.cuda_graph",
    "copyto": "x[...] = value", "put": "x[indices] = values", "vectorize": "functions of whole arrays",
    "isreal": "nf.equal(nf.imag(x), 0)", "size": "x.size", "shape": "x.shape", "ndim": "x.ndim", "vsplit": "nf.split",
    "hsplit": "nf.split(x, n, axis=1)", "resize": "nf.reshape or nf.tile",
    "deg2rad": "x * (nf.pi / 180)", "rad2deg": "x * (180 / nf.pi)", "radians": "x * (nf.pi / 180)",
    "degrees": "x * (180 / nf.pi)", "in1d": "nf.isin",
    "flipud": "nf.flip(x, axis=0)", "fliplr": "nf.flip(x, axis=1)", "rollaxis": "nf.moveaxis",
    **dict.fromkeys(("bf16", "brain_float"), "nf.bfloat16"), "fp16": "nf.float16", "fp32": "nf.float32",
    **dict.fromkeys(("fp8", "float8", "e4m3"), "nf.fp8_e4m3 (with scales), or nf.float8_e4m3fn (without)"),
    **dict.fromkeys(("float8_e4m3", "float8_e4m3fnuz", "float8_e4m3b11fnuz"), "nf.float8_e4m3fn, the one of NVIDIA"),
    "e5m2": "nf.fp8_e5m2 (with scales), or nf.float8_e5m2 (without)", "float8_e5m2fnuz": "nf.float8_e5m2",
    "e8m0": "nf.float8_e8m0fnu", "int4": 'nf.QuantDType(element="int4", ...)',
    "mxfp6": "nf.mxfp6_e2m3 or nf.mxfp6_e3m2",
    **dict.fromkeys(("fp4", "float4", "float4_e2m1", "float4_e2m1fn_x2"), "nf.nvfp4 or nf.mxfp4 (with scales), or "
                    "nf.float4_e2m1fn (without)"),
    **dict.fromkeys(("manual_seed", "seed"), "rng = nf.random.default_rng(seed)"),
    "topk": "nf.sort(x, descending=True)[..., :k]", "identity": "nf.eye(n)", "asanyarray": "nf.asarray(x)",
    "partition": "nf.sort", "argpartition": "nf.argsort", "promote_types": "nf.result_type", "issubdtype": "nf.isdtype",
    **dict.fromkeys(("savez", "savez_compressed", "savetxt"), "nf.save(path, arrays)"), "numel": "x.size",
    "Parameter": "nf.asarray(x, requires_grad=True)", "cuda": "nf.devices() and nf.cuda_problem()",
    "r_": "nf.concat", "c_": "nf.column_stack", "mgrid": "nf.meshgrid", "ogrid": "nf.meshgrid", "clone": "nf.copy(x)",
    "cast": "nf.astype(x, dtype)",
}  # fmt: skip

# Names of `nf.random` elsewhere -> what to write on a Generator.
_RANDOM = {"rand": "random(size)", "randn": "normal(size=size)", "randint": "integers(low, high, size=size)",
           "random_sample": "random(size)", "bits": "integers(2**32, size=size)"}  # fmt: skip

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
    **dict.fromkeys(("mm", "bmm", "matmul"), "x @ y"), "norm": "nf.linalg.norm(x)", "flat": "x.ravel()",
    "softmax": "nf.nn.functional.softmax(x)", "block_until_ready": "x (asking for a value waits)",
}  # fmt: skip

# Keywords elsewhere -> keywords here, the first that the function has.
_KEYWORDS = {
    "dim": ("axis", "axes"), "dims": ("axis", "axes"), "keepdim": ("keepdims",), "ddof": ("correction",),
    "unbiased": ("correction",), "shape": ("size",), "size": ("shape",), "value": ("constant_values", "fill_value"),
    "repeats": ("repetitions",), "reps": ("repetitions",), "pad_width": ("widths",), "chunks": ("sections",),
}  # fmt: skip

# Calls of other libraries that a function of the same name does not take -> what to write here.
_CALLS = {
    "round": "write nf.round(x * 100) / 100 for two decimals",
    "where": "write nf.nonzero(condition), or give x and y",
}


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


def tell_missing(module: str) -> None:
    """Let a namespace below the root (`nf.random`, `nf.linalg`, `nf.fft`) answer names that it lacks as the root does.

    Args:
        module: its ``__name__``.
    """
    space = modules[module]

    def look_up(name: str) -> Any:
        if name.startswith("_"):  # protocols ask for these often
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise _unknown_in(space, name)

    vars(space)["__getattr__"] = look_up


def _unknown_in(space: Any, name: str) -> UnknownNameError:
    room = space.__name__.rpartition(".")[2]
    if room == "random":
        call = _RANDOM.get(name, f"{name}(...)" if hasattr(space.Generator, name) else "")
        do = "write rng = nf.random.default_rng(seed)" + (f" and rng.{call}" if call else "; there is no global state")
    elif find(name) is not None:
        do = f"write nf.{name}"
    elif near := get_close_matches(name, dir(space), n=3):
        do = f"is it one of {', '.join(near)}?"
    else:
        beyond = f"compute it with SciPy: nf.asarray(scipy.linalg.{name}(nf.asnumpy(x)))"
        do = beyond if room == "linalg" else f"see dir(nf.{room})"
    return UnknownNameError(message(f"nvfp.{room}.{name}", f"a name of nvfp.{room}", repr(name), do), name=name)


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
    if op in _CALLS:
        expected = f"{op}({', '.join(n for n in parameters if n != 'self')})"
        return DTypeError(message(op, expected, error, _CALLS[op]))
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
