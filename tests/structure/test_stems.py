"""The stems table and the tree say the same, both ways; CPU and CUDA twins have one signature."""

from __future__ import annotations

import ast

import pytest

from nvfp.kernels.stems import STEMS, Absent, Stem
from tests.structure.tree import PACKAGE, ROOT, parsed

KERNELS = PACKAGE / "kernels"
# Files beside the stems that are not stems themselves.
CONTRACT_ROOM = {"operand", "input_fn", "stems", "compile", "elementwise_table"}
CUDA_ROOM = {"instances"}


def _names(folder: str, pattern: str, strip: str = "") -> set[str]:
    found = {path.stem.removeprefix(strip) for path in (ROOT / folder).glob(pattern)}
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("stem", STEMS.values(), ids=list(STEMS))
def test_places_exist(stem: Stem) -> None:
    files = [f"nvfp/kernels/{room}{stem.name}.py" for room in ("", "cpu/", "cuda/")]
    files += [f"nvfp/kernels/cuda/{source}" for source in (() if isinstance(stem.sources, Absent) else stem.sources)]
    files += [stem.test, *(place for place in (stem.oracle, stem.benchmark) if isinstance(place, str))]
    files += [f"nvfp/{stem.gradient}"] if isinstance(stem.gradient, str) else []
    missing = [file for file in files if not (ROOT / file).is_file()]
    assert not missing, f"stem {stem.name} of kernels/stems.py lacks {missing}"


def test_every_file_belongs_to_a_stem() -> None:
    stems = set(STEMS)
    extra = {
        "kernels": _names("nvfp/kernels", "*.py") - stems - CONTRACT_ROOM,
        "kernels/cpu": _names("nvfp/kernels/cpu", "*.py") - stems,
        "kernels/cuda": _names("nvfp/kernels/cuda", "*.py") - stems - CUDA_ROOM,
        "tests/oracles": _names("tests/oracles", "*.py") - stems,
    }
    assert not any(extra.values()), f"files of no stem (add a row to kernels/stems.py or an underscore): {extra}"


def test_every_cuda_source_has_one_stem() -> None:
    tabled = [s for stem in STEMS.values() if not isinstance(stem.sources, Absent) for s in stem.sources]
    assert len(tabled) == len(set(tabled)), "a CUDA source stands in two rows"
    in_tree = {path.relative_to(KERNELS / "cuda").as_posix() for path in (KERNELS / "cuda").rglob("*.cu")}
    assert in_tree == set(tabled), (
        f"only in the tree: {in_tree - set(tabled)}; only in the table: {set(tabled) - in_tree}"
    )


def test_variants_start_with_their_stem() -> None:
    for stem in STEMS.values():
        if not isinstance(stem.sources, Absent):
            wrong = [s for s in stem.sources if s != f"{stem.name}.cu" and not s.startswith(f"{stem.name}_")]
            assert not wrong, f"{stem.name}: CUDA sources are named <stem>.cu or <stem>_<variant>.cu, not {wrong}"


def test_every_benchmark_is_tabled() -> None:
    tabled = {stem.benchmark for stem in STEMS.values() if isinstance(stem.benchmark, str)}
    in_tree = {f"benchmarks/bench_{name}.py" for name in _names("benchmarks", "bench_*.py", "bench_")}
    of_stems = {file for file in in_tree if any(file == f"benchmarks/bench_{stem}.py" for stem in STEMS)}
    assert of_stems <= tabled, f"benchmarks missing from kernels/stems.py: {sorted(of_stems - tabled)}"


def _signatures(room: str, stem: str) -> dict[str, str]:
    """The public functions of a file with their arguments, defaults and annotations."""
    path = KERNELS / room / f"{stem}.py"
    assert path.is_file(), f"kernels/{room}/{stem}.py is missing"
    functions = (node for node in parsed(path).body if isinstance(node, ast.FunctionDef))
    return {
        f.name: f"({ast.unparse(f.args)}) -> {ast.unparse(f.returns) if f.returns else 'untyped'}"
        for f in functions
        if not f.name.startswith("_")
    }


@pytest.mark.parametrize("stem", list(STEMS))
def test_twins_have_one_signature(stem: str) -> None:
    """What the contract dispatches is in both twins, alike; helpers that twins share with their room may differ."""
    contract = _signatures("", stem)
    cpu, cuda = ({n: text for n, text in _signatures(room, stem).items() if n in contract} for room in ("cpu", "cuda"))
    assert cpu == cuda
    assert cpu, f"no function of kernels/{stem}.py has a twin"


def test_launchers_import_without_cupy() -> None:
    """`instances()` of each launcher must work where CuPy does not: no module-level import of it."""
    wrong = []
    for path in (KERNELS / "cuda").glob("*.py"):
        for node in parsed(path).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [f"{path.name}: {name}" for name in names if name.split(".")[0] in ("cupy", "cuda", "nvmath")]
    assert not wrong, wrong
