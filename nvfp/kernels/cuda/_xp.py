"""`cp`: CuPy, imported at its first use, so that launcher modules import on machines without it."""

from __future__ import annotations

from typing import Any

from nvfp.optional import need


class _Lazy:
    """Stands for the module ``cupy``; every attribute is looked up once and then kept."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(need("cupy", extra="cuda13"), name)
        setattr(self, name, value)
        return value


cp: Any = _Lazy()
