"""Whether operations are recorded: one ContextVar, so threads and tasks do not disturb each other."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_enabled: ContextVar[bool] = ContextVar("nvfp_grad_enabled", default=True)


def grad_enabled() -> bool:
    """Whether operations on tracked arrays are recorded here (per thread and task).

    Example:
        >>> with no_grad():
        ...     grad_enabled()
        False
    """
    return _enabled.get()


class _Mode:
    """A context manager and decorator that sets the mode and restores what its own entry found."""

    __slots__ = ("_tokens",)
    _value: bool

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        self._tokens.append(_enabled.set(self._value))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _enabled.reset(self._tokens.pop())

    def __call__(self, function: F) -> F:
        mode = type(self)  # a fresh one per call: threads may run the function at the same time

        @wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with mode():
                return function(*args, **kwargs)

        return inner  # type: ignore[return-value]


class no_grad(_Mode):
    """Record nothing inside: results do not require gradients. Also a decorator: ``@no_grad()``.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([1.0], device="cpu", requires_grad=True)
        >>> with nf.no_grad():
        ...     (x * 2).requires_grad
        False
    """

    __slots__ = ()
    _value = False


class enable_grad(_Mode):
    """Record inside, even within `no_grad`. Also a decorator: ``@enable_grad()``.

    Example:
        >>> with no_grad(), enable_grad():
        ...     grad_enabled()
        True
    """

    __slots__ = ()
    _value = True
