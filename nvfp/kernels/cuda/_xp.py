"""`cp`: CuPy, imported at its first use, so that launcher modules import on machines without it."""

from __future__ import annotations

from typing import Any

from nvfp.kernels.cuda._recorder import thread
from nvfp.optional import need

_PLAIN = {"_empty": "empty", "_zeros": "zeros"}


class _Lazy:
    """Stands for the module ``cupy``; every attribute is looked up once and then kept.

    Attributes:
        empty: notes what it allocates, where the thread records.
        zeros: likewise.
    """

    def empty(self, shape: Any, dtype: Any = float) -> Any:
        made = self._empty(shape, dtype)
        if thread.recorder is not None:
            thread.recorder.allocated(made, made.data.ptr, made.nbytes)
        return made

    def zeros(self, shape: Any, dtype: Any = float) -> Any:
        made = self._zeros(shape, dtype)
        if thread.recorder is not None:
            thread.recorder.allocated(made, made.data.ptr, made.nbytes)
            thread.recorder.cleared(made.data.ptr, made.nbytes)
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(need("cupy", extra="cuda13"), _PLAIN.get(name, name))
        setattr(self, name, value)
        return value


cp: Any = _Lazy()
