"""Optional packages, imported at first use and nowhere else."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from nvfp.errors import MissingDependencyError, message


@cache
def need(package: str, *, extra: str) -> Any:
    """Import and return an optional package, or raise with the command that installs it.

    Args:
        package: import name, e.g. ``"cupy"`` or ``"cuda.bindings.nvrtc"``.
        extra: the extra of ``pyproject.toml`` that holds it.

    Raises:
        MissingDependencyError: the package is absent or its own imports fail; the cause is chained.

    Example:
        >>> need("json", extra="none").dumps([1])
        '[1]'
    """
    try:
        return import_module(package)
    except (ImportError, OSError) as error:
        raise MissingDependencyError(
            message(
                package, "an importable package", f"{type(error).__name__}: {error}", f"pip install 'nvfp[{extra}]'"
            )
        ) from error


def has(package: str) -> bool:
    """Whether a package can be found, without importing it.

    Example:
        >>> has("json"), has("no_such_package_here")
        (True, False)
    """
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False
