"""Typed errors and the one form of their messages.

Every message reads ``[op] expected ..., got ...; do ...``: the operation the user called, what it
needs, what came, and the remedy. Each class also derives from the builtin that a NumPy user would
catch, so ``except ValueError`` keeps working.
"""

from __future__ import annotations

import numpy as np


class NvfpError(Exception):
    """Base of every error that nvfp raises on purpose."""


class ShapeError(NvfpError, ValueError):
    """Shapes, axes or block borders that do not fit together."""


class AxisError(ShapeError, IndexError):
    """An axis that an array does not have, or one named twice (also an IndexError, as NumPy's of that name)."""


class DTypeError(NvfpError, TypeError):
    """A dtype that the operation does not take, or two that do not mix."""


class ArgumentError(NvfpError, ValueError):
    """A value outside the allowed set or range."""


class IntegerOverflowError(ArgumentError, OverflowError):
    """An integer that the wanted dtype does not hold."""


class UnknownNameError(NvfpError, AttributeError):
    """A name that an object does not have; the message tells how nvfp spells it."""


class BlockIndexError(NvfpError, IndexError):
    """An index that is out of range or that would cut a block of a quantized array."""


class DeviceError(NvfpError, RuntimeError):
    """A device that is missing, unusable, or mixed with another one."""


class GradientError(NvfpError, RuntimeError):
    """A backward pass that cannot be done (no graph, freed values, changed storage)."""


class StateError(NvfpError, RuntimeError):
    """Saved or scaling state that does not belong to the object it is given to."""


class CacheFullError(NvfpError, RuntimeError):
    """A key-value cache that has no room for what the next step brings."""


class FileFormatError(NvfpError, ValueError):
    """A file whose content is not what its format demands."""


class MissingDependencyError(NvfpError, ImportError):
    """An optional package that the call needs is not installed or does not load."""


class NotBuiltError(NvfpError, NotImplementedError):
    """A documented argument or combination that this release does not build yet."""


class LinAlgError(NvfpError, np.linalg.LinAlgError):
    """A matrix that has no inverse, factors or eigenvalues, or for which the method does not converge."""


class KernelError(NvfpError, RuntimeError):
    """A CUDA source that does not compile or a library call that failed."""


def message(op: str, expected: str, got: object, do: str) -> str:
    """Return ``[op] expected <expected>, got <got>; <do>``.

    Args:
        op: the public name the user called, e.g. ``"matmul"``.
        expected: what the operation needs, in words.
        got: the offending value, shape or dtype (formatted with ``str``).
        do: the remedy, starting with a verb.

    Returns:
        The text for the exception.

    Example:
        >>> message("matmul", "equal inner lengths", "(2, 3) @ (4, 5)", "transpose one operand")
        '[matmul] expected equal inner lengths, got (2, 3) @ (4, 5); transpose one operand'
    """
    return f"[{op}] expected {expected}, got {got}; {do}"
