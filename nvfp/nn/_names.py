"""The names of GEMMs, for recipes that depend on them: dotted, from the outermost module that is being called."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any


class Root:
    """The outermost module that runs, and the names of the GEMMs below it, found when the first is asked for."""

    __slots__ = ("_module", "_names")

    def __init__(self, module: Any) -> None:
        self._module = module
        self._names: dict[int, str] | None = None

    def name_of(self, site: Any) -> str:
        """The name of a `GemmSite`; its own where no registered module holds it."""
        if self._names is None:
            self._names = {}
            for name, found in sites(self._module):
                self._names.setdefault(id(found), name)
        return self._names.get(id(site), str(site.name))


root: ContextVar[Root | None] = ContextVar("nvfp_root_module", default=None)


def sites(module: Any) -> list[tuple[str, Any]]:
    """Return (name, `GemmSite`) of every GEMM of a module, in the order of its submodules."""
    return [
        (".".join(part for part in (prefix, site.name) if part), site)
        for prefix, owner in module.named_modules()
        for site in getattr(owner, "_sites", ())
    ]


def name_of(site: Any) -> str:
    """Return the name of a GEMM in the outermost module that is being called.

    Args:
        site: its `GemmSite`.
    """
    found = root.get()
    return str(site.name) if found is None else found.name_of(site)
