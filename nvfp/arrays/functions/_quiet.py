"""`quiet.run`: NumPy calls without floating-point warnings, at a fraction of what ``np.errstate`` costs."""

from __future__ import annotations

import threading
from contextvars import Context

import numpy as np


class _Quiet(threading.local):
    """Per thread a context of its own in which NumPy warns of nothing.

    ``run(function, *args)`` calls a function in it. Inside a call of `run` of the same thread it raises RuntimeError;
    callers take their other way then (NumPy's loops over numbers call no Python, so it needs a signal handler).
    """

    def __init__(self) -> None:
        context = Context()
        context.run(np.seterr, all="ignore")
        self.run = context.run


quiet = _Quiet()
