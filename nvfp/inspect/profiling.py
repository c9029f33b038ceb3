"""`nvtx`: named ranges in the time line of a profiler, by module, by gradient rule and by stem.

Off, nothing is left in the way of a call but one test that each module and each node makes: the kernels'
dispatch looks its modules up in a table, and while ranges are on that table holds others.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from nvfp import config
from nvfp.autograd import walk
from nvfp.device import cuda_problem
from nvfp.errors import DeviceError, DTypeError, MissingDependencyError, StateError, message
from nvfp.kernels import _dispatch
from nvfp.nn import module as modules
from nvfp.nn.module import Module
from nvfp.optional import need

_lock = threading.RLock()
_depth = 0
_names: WeakKeyDictionary[Module, str] = WeakKeyDictionary()


class nvtx:
    """Put NVTX ranges around modules, gradient rules and kernels' stems, for Nsight Systems and its kin.

    A module's range bears its name in ``model`` (without one its class), a rule's ``linear backward``, a stem's
    ``quantize``; they nest as the calls do. Ranges are the process's, as profilers are: other threads get them too.
    ``NVFP_NVTX=1`` turns them on for good when nvfp's arrays are first used; where that cannot be done it warns once.

    Args:
        model: a Module whose parts are to be named by their place in it.

    Raises:
        DTypeError: ``model`` is no Module.
        DeviceError: there is no usable CUDA device (at the entry): a range would be seen by nobody.
        MissingDependencyError: CuPy is not installed (at the entry).
        StateError: entered twice.

    Numerics:
        No launch, no synchronisation. A CUDA graph's replay shows no ranges.

    Example:
        >>> import nvfp as nf
        >>> try:
        ...     with nf.inspect.nvtx():
        ...         on = True
        ... except nf.errors.DeviceError:  # no GPU here
        ...     on = True
        >>> on
        True
    """

    def __init__(self, model: Module | None = None) -> None:
        if model is not None and not isinstance(model, Module):
            raise DTypeError(message("nvtx", "a Module or None", type(model).__name__, "pass the model"))
        self._model, self._entered = model, False

    def __enter__(self) -> nvtx:
        if self._entered:
            raise StateError(message("nvtx", "an object that was not entered", "one that was", "make a new one"))
        push, pop = _library()
        self._entered = True
        if self._model is not None:
            for name, part in self._model.named_modules():
                _names.setdefault(part, name or type(part).__name__)
        turn_on(push, pop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        turn_off()


def _library() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """CuPy's functions that open and close a range."""
    problem = cuda_problem()
    if problem is not None:
        raise DeviceError(message("nvtx", "a CUDA device to profile", problem, "leave nvtx() out on the CPU"))
    library = need("cupy.cuda.nvtx", extra="cuda13")
    return library.RangePush, library.RangePop


def turn_on(push: Callable[[str], Any], pop: Callable[[], Any]) -> None:
    """Put ranges around everything from now on, until as many calls of `turn_off`.

    Args:
        push: opens a range of the given name.
        pop: closes the innermost one.
    """
    global _depth

    @contextmanager
    def span(name: str) -> Iterator[None]:
        push(name)
        try:
            yield
        finally:
            pop()

    with _lock:
        _depth += 1
        if _depth > 1:
            return
        _dispatch.load_with(lambda name: _Spans(name, span))
        modules.set_span(lambda module: span(_names.get(module) or type(module).__name__))
        walk.set_span(lambda node: span(f"{node} backward"))


def turn_off() -> None:
    """Take the ranges away again, at the last of as many calls as of `turn_on`."""
    global _depth
    with _lock:
        _depth -= 1
        if _depth:
            return
        _dispatch.load_with(import_module)
        modules.set_span(None)
        walk.set_span(None)
        _names.clear()


class _Spans:
    """Stands for the module of a stem: the same names, its functions inside a range of the stem's name."""

    def __init__(self, module: str, span: Any) -> None:
        self._module, self._span = import_module(module), span
        self._stem = module.rpartition(".")[2]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if not callable(found) or isinstance(found, type):
            return found
        label = self._stem if name == self._stem else f"{self._stem} {name}"

        def ranged(*args: Any, **kwargs: Any) -> Any:
            with self._span(label):
                return found(*args, **kwargs)

        setattr(self, name, ranged)  # found without this function from now on
        return ranged


def from_switch() -> None:
    """Turn ranges on for good if ``NVFP_NVTX`` asks for them; warn where that cannot be done."""
    if not config.flag("NVFP_NVTX"):
        return
    try:
        turn_on(*_library())
    except (DeviceError, MissingDependencyError) as error:
        warnings.warn(f"NVFP_NVTX is set, but there are no ranges: {error}", RuntimeWarning, stacklevel=2)
