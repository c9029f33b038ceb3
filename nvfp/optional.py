"""Optional packages, imported at first use and nowhere else."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any

from nvfp.errors import MissingDependencyError, message

# Import name -> distributions that all install it: two of them overwrite each other's files.
_RIVALS = {"cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")}


@cache
def need(package: str, *, extra: str) -> Any:
    """Import and return an optional package, or raise with the command that installs it.

    Args:
        package: import name, e.g. ``"cupy"`` or ``"cuda.bindings.nvrtc"``.
        extra: the extra of ``pyproject.toml`` that holds it.

    Raises:
        MissingDependencyError: the package is absent, two distributions of it are installed, or its own imports fail;
            the cause is chained.

    Example:
        >>> need("json", extra="none").dumps([1])
        '[1]'
    """
    rivals = [name for name in _RIVALS.get(package, ()) if _is_installed(name)]
    if len(rivals) > 1:
        do = f"pip uninstall {' '.join(rivals)}, then pip install 'nvfp[{extra}]'"
        raise MissingDependencyError(message(package, "one distribution of it", " and ".join(rivals), do))
    try:
        return import_module(package)
    except (ImportError, OSError) as error:
        raise MissingDependencyError(
            message(
                package, "an importable package", f"{type(error).__name__}: {error}", f"pip install 'nvfp[{extra}]'"
            )
        ) from error


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


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
