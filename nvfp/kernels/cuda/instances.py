"""Every kernel that CI compiles without a GPU: what each launcher module lists in its ``instances()``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from nvfp.kernels.cuda._loader import Instance, files_of

# Every kernel is compiled for Hopper. Blackwell gets what reads or writes narrow codes, whose conversion instructions
# differ from target to target, and one kernel of each other source. The older and smaller targets share the sources:
# a kernel of every narrow source goes to two of them in turn, one of every other source to the next.
IN_FULL, NARROW = "sm_90a", "sm_100f"
SHARING = ("sm_80", "sm_89", "sm_120f")


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


def converts(source: str) -> bool:
    """Whether a source converts to or from narrow codes.

    Example:
        >>> converts("cast.cu"), converts("rope.cu")
        (True, False)
    """
    return any(path.name == "encode.cuh" for path in files_of(source))


def declared(chosen: list[Instance]) -> list[tuple[Instance, str]]:
    """Return what ``--all`` compiles of the chosen kernels: (instance, target) over all targets."""
    narrow = {i.source for i in chosen if converts(i.source)}
    first = one_per_source(chosen)
    shared, plain = ([i for i in first if (i.source in narrow) == wanted] for wanted in (True, False))
    return [
        *((i, IN_FULL) for i in chosen),
        *((i, NARROW) for i in chosen if i.source in narrow),
        *((i, NARROW) for i in plain),
        *((i, arch) for n, i in enumerate(shared) for skip, arch in enumerate(SHARING) if skip != n % len(SHARING)),
        *((i, SHARING[n % len(SHARING)]) for n, i in enumerate(plain)),
    ]
