"""C names of NumPy dtypes, for the ``-DT_IN=...`` macros of the CUDA sources."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from nvfp.errors import DTypeError, message

_CTYPES: dict[np.dtype, str] = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.float16): "__half",
    np.dtype(ml_dtypes.bfloat16): "__nv_bfloat16",
    np.dtype(np.bool_): "bool",
    np.dtype(np.int8): "signed char",
    np.dtype(np.int16): "short",
    np.dtype(np.int32): "int",
    np.dtype(np.int64): "long long",
    np.dtype(np.uint8): "unsigned char",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.uint32): "unsigned int",
    np.dtype(np.uint64): "unsigned long long",
}


def ctype(dtype: np.dtype) -> str:
    """Return the C type of a dense dtype, e.g. ``"__nv_bfloat16"``.

    Raises:
        DTypeError: the dtype has no C type here (narrow dtypes travel as uint8 codes).

    Example:
        >>> ctype(np.dtype(np.float16))
        '__half'
    """
    try:
        return _CTYPES[dtype]
    except KeyError:
        known = ", ".join(str(d) for d in _CTYPES)
        raise DTypeError(message("cuda", f"one of {known}", dtype, "pass narrow dtypes as uint8 codes")) from None
