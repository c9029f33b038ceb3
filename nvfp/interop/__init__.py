"""Bridges into other frameworks: ``nvfp.interop.torch`` and ``nvfp.interop.jax``.

Importing this room loads neither framework; a bridge loads its own at its first use. Arrays need no bridge:
`nf.from_dlpack` and the frameworks' own ``from_dlpack`` exchange them (docs/interop.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from nvfp.optional import has

_BRIDGES = ("jax", "torch")


def __getattr__(name: str) -> Any:
    if name in _BRIDGES:
        return import_module(f"nvfp.interop.{name}")
    raise AttributeError(f"module 'nvfp.interop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *(name for name in _BRIDGES if has(name))]
