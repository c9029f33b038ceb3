"""`einsum` against NumPy: subscripts, dtypes, broadcasting, gradients, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.autograd import check_grads
from nvfp.errors import ArgumentError, NvfpError, ShapeError
from tests.tolerances import tolerance

SIZES = dict(zip("abijkn", (2, 1, 3, 5, 4, 3), strict=True))
CASES = [
    "ij,jk->ik", "ij,jk", "ij,kj->ik", "ji,jk->ki", "ij->ji", "ij->", "ij->j", "in->", "ii", "ii->i", "iij->ji", "iii",
    "i,i->", "i,j->ij", "ij,ij->ij", "ij,ij->i", "ij,ij", "i,ij,j->", "ij,jk,ka->ia", "aij,ajk->aik", "aij,ajk->ai",
    "ij,aj->a", "ai,bj->abij", "bij,aj->ib", "ij,k->", "ba,ij,ji->ab", "...ij,...jk->...ik", "...i,...i->...",
    "i...->...", "ij->j...", "...ij->...ji", "a...,a...", "j, ij -> i", ",i->i",
]  # fmt: skip


def operands(case: str, dtype: str) -> list[np.ndarray]:
    rng, shapes = np.random.default_rng(0), []
    for term in case.replace(" ", "").partition("->")[0].split(","):
        before, dots, after = term.partition("...")
        shapes.append((*(SIZES[c] for c in before), *((2, 3) if dots else ()), *(SIZES[c] for c in after)))
    drawn = [rng.integers(-4, 5, shape) for shape in shapes]
    return [(d if "int" in dtype else d / 4).astype(nf.result_type(dtype)) for d in drawn]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int32"])
@pytest.mark.parametrize("case", CASES)
def test_values(case: str, dtype: str, device: Any) -> None:
    arrays = operands(case, dtype)
    got = nf.einsum(case, *map(nf.asarray, arrays))
    exact = [a.astype(np.int64 if dtype == "int32" else np.float64) for a in arrays]
    expected = np.einsum(case, *exact)
    assert got.dtype == arrays[0].dtype and got.device == device and got.shape == expected.shape
    row = tolerance("gemm", "float32" if dtype == "int32" else dtype)
    scale = np.max(np.einsum(case, *(np.abs(a) for a in exact)), initial=0)
    np.testing.assert_allclose(
        np.asarray(got).astype(np.float64), expected, rtol=row.rtol, atol=row.atol * float(scale)
    )


def test_lengths_of_one_broadcast(device: Any) -> None:
    rng = np.random.default_rng(0)
    for case, left, right in (
        ("...ij,...jk->...ik", (2, 1, 3, 5), (4, 5, 2)),
        ("...i,...i->...", (2, 1, 3), (4, 3)),
        ("...i,i", (2, 4, 3), (3,)),
        ("ij,ij->i", (2, 1), (2, 3)),
        ("ij,ij->ij", (1, 3), (2, 3)),
        ("ij,ij->j", (1, 3), (2, 3)),
        ("ij,jk->ik", (0, 3), (3, 2)),
        ("ij,jk->ik", (2, 0), (0, 2)),
    ):
        a, b = (rng.standard_normal(s).astype(np.float32) for s in (left, right))
        got = nf.einsum(case, nf.asarray(a), nf.asarray(b))
        row = tolerance("gemm", "float32")
        np.testing.assert_allclose(np.asarray(got), np.einsum(case, a, b), rtol=row.rtol, atol=row.atol * 10)


def test_sums_round_once(device: Any) -> None:
    a = nf.full((3, 4096), 0.1, dtype=nf.bfloat16)
    one = nf.ones((1,), dtype=nf.bfloat16)
    exact = float(np.float64(a[0, 0].item()) * 3 * 4096)
    for got in (nf.einsum("ij->", a), nf.einsum("ij,k->", a, one), nf.einsum("ij,k,a->", a, one, one)):
        assert got.dtype == nf.bfloat16 and got.item() == nf.asarray(exact, dtype=nf.bfloat16).item()


def test_dtypes_promote_and_quantized_operands_count_with_their_values(device: Any) -> None:
    x = nf.asarray(np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32))
    q = x.astype(nf.mxfp8)
    assert nf.einsum("ij,kj->ik", x, x.astype(nf.bfloat16)).dtype == nf.float32
    assert nf.einsum("ij,kj->ik", q, x.astype(nf.bfloat16)).dtype == nf.bfloat16
    assert nf.einsum("i,i", nf.ones((2,), dtype=nf.int8), nf.ones((2,), dtype=nf.int32)).dtype == nf.int32
    assert nf.allclose(nf.einsum("ij,kj->ik", q, x), q.astype(nf.float32) @ x.T, atol=1e-5)
    assert nf.einsum("ij->i", nf.asarray([[True, False], [False, False]])).tolist() == [True, False]
    assert isinstance(np.einsum("ij->i", x), nf.Array) and nf.einsum("i,->i", x[0], 2.0).tolist() == (x[0] * 2).tolist()


@pytest.mark.parametrize(
    "case", ["ij,jk->ik", "iij->ji", "ij->", "i,ij,j->", "aij,ajk->ai", "ij,ij->ij", "...i,...i->...", "ij,ij->"]
)
def test_gradients(case: str) -> None:
    arrays = [nf.asarray(a + 0.1, device="cpu") for a in operands(case, "float64")]
    check_grads(lambda *x: nf.einsum(case, *x), arrays, order=2)


def test_gradients_of_broadcast_lengths() -> None:
    a, b = (nf.asarray(np.random.default_rng(1).standard_normal(s), device="cpu") for s in ((2, 1), (2, 3)))
    check_grads(lambda x, y: nf.einsum("ij,ij->i", x, y), [a, b], order=2)


@pytest.mark.parametrize(
    ("case", "shapes", "kind"),
    [
        ("ij,jk->ik", [(2, 3)], ArgumentError),
        ("ij,jk->iz", [(2, 3), (3, 4)], ArgumentError),
        ("ij->ii", [(2, 3)], ArgumentError),
        ("i.j->i", [(2, 3)], ArgumentError),
        ("i->i->i", [(2,)], ArgumentError),
        ("...i->i", [(2, 3)], ArgumentError),
        ("ij,jk->ik", [(2, 3), (4, 4)], ShapeError),
        ("ij->i", [(2, 3, 4)], ShapeError),
        ("ijk...->i", [(2, 3)], ShapeError),
        ("ii->i", [(2, 3)], ShapeError),
    ],
)
def test_errors(case: str, shapes: list[tuple[int, ...]], kind: type[NvfpError], device: Any) -> None:
    with pytest.raises(kind, match=r"^\[einsum\] expected .*; "):
        nf.einsum(case, *(nf.ones(s) for s in shapes))
    with pytest.raises(ArgumentError, match="as text"):
        nf.einsum(nf.ones((2,)), [0])  # type: ignore[arg-type]
