"""What users of NumPy, torch and JAX type by habit, told in nvfp's spelling: for error messages only."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from nvfp.arrays.registry import find
from nvfp.errors import DTypeError, UnknownNameError, message

F = TypeVar("F", bound=Callable[..., Any])

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
