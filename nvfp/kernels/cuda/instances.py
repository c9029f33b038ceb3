"""Every kernel that CI compiles without a GPU: what each launcher module lists in its ``instances()``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from nvfp.kernels.cuda._loader import ARCHITECTURES, Instance

# Compiled in full; for the other targets one kernel of each source shows that its instructions exist there.
IN_FULL = ("sm_90a", "sm_100f")


def instances(stem: str | None = None) -> list[Instance]:
    """Return the declared instances of one stem, or of all.

    Example:
        >>> sorted({instance.source for instance in instances("amax")})
        ['amax.cu']
    """
    names = [stem] if stem else sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem[0] not in "_i")
    modules = (import_module(f"nvfp.kernels.cuda.{name}") for name in names)
    return [instance for module in modules if hasattr(module, "instances") for instance in module.instances()]


def one_per_source(found: list[Instance]) -> list[Instance]:
    """Return the first instance of each source file."""
    first: dict[str, Instance] = {}
    for instance in found:
        first.setdefault(instance.source, instance)
    return list(first.values())


def declared(chosen: list[Instance]) -> list[tuple[Instance, str]]:
    """Return what ``--all`` compiles of the chosen kernels: (instance, target) over all targets."""
    first = one_per_source(chosen)
    return [(i, arch) for arch in ARCHITECTURES for i in (chosen if arch in IN_FULL else first)]
