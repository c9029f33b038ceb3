"""`nf.quantize(convention=)`: every group of bytes that other stacks made, under the name that reproduces it.

The rotated and the column-wise groups need sides that only kernels make: tests/kernels/test_quantize_rotation.py and
test_quantize_levels.py; here their row copies, and columns as rows of the transpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.dtypes.formats import FORMATS, QuantDType
from nvfp.dtypes.packing import unpack
from nvfp.kernels.hadamard import hadamard
from tests.data.load import cases, load
from tests.devices import to_device, to_numpy

FILES = ("blocks_mx", "blocks_nvfp4", "blocks_nvfp4_variants", "blocks_checkpoints")
_SEARCHED = tuple(f"{mode}_{bound}" for mode in ("mae", "mse") for bound in (256, 448))
_2D = nf.nvfp4.replace(block=(16, 16))
_LINES = nf.nvfp4.replace(per_row_tensor_scale=True)
# Group -> the format and the conventions (None: nvfp's own rule) that give its bytes. NVIDIA's headers are what
# Transformer Engine calls for MXFP8; it has no other MX formats.
GROUPS: dict[str, tuple[QuantDType, tuple[str | None, ...]]] = {
    **{f"cuda_headers.{n}.ceil": (FORMATS[n], ("te", None)) for n in ("mxfp8_e4m3", "mxfp8_e5m2")},
    **{f"cuda_headers.{n}.ceil": (FORMATS[n], (None,)) for n in ("mxfp6_e2m3", "mxfp6_e3m2", "mxfp4")},
    **{
        f"torchao.{name}.{rule}": (row.replace(scale_rule=rule), ("torchao", None))
        for name, row in FORMATS.items() if name.startswith("mxfp") for rule in ("floor", "ceil", "even")
    },
    "gfloat.mxint8.floor": (nf.mxint8, ("ocp", None)),
    "microxcaling.mxint8.floor": (nf.mxint8, ("microxcaling",)),
    "modelopt.nvfp4.weight": (nf.nvfp4, ("modelopt",)),
    "compressed_tensors.nvfp4.weight": (nf.nvfp4, ("compressed-tensors",)),
    "te_ref.nvfp4.1d": (nf.nvfp4, ("te", None)),
    "te_ref.nvfp4.2d": (_2D, ("te", None)),
    "te_ref.nvfp4.rht": (nf.nvfp4, ("te", None)),
    "te_ref.nvfp4.row_scaled": (_LINES, ("te", None)),
    **{f"te_ref.nvfp4.4over6_{m}": (nf.nvfp4.replace(four_over_six=m), ("te", None)) for m in _SEARCHED},
    **{f"te_ref.nvfp4.4over6_2d_{m}": (_2D.replace(four_over_six=m), ("te", None)) for m in _SEARCHED},
    **{f"te_ref.nvfp4.4over6_row_scaled_{m}": (_LINES.replace(four_over_six=m), ("te", None)) for m in _SEARCHED},
}  # fmt: skip
CASES = [
    (file, case, convention)
    for file in FILES
    for case in sorted({*cases(file, "data"), *cases(file, "columnwise_data")})
    for convention in GROUPS[".".join(case.split(".")[:3])][1]
]


def test_every_group_is_here() -> None:
    groups = {".".join(case.split(".")[:3]) for _, case, _ in CASES}
    assert len(groups) == 31
    assert {f"te_ref.nvfp4.{v}" for v in ("1d", "2d", "rht", "row_scaled", "4over6_2d_mse_256")} < groups
    tensors = [key for file in FILES for key in load(file) if not key.startswith("input.")]
    assert {".".join(key.split(".")[:3]) for key in tensors} == groups


def source(file: str, case: str, device: Any) -> np.ndarray:
    """The input of a case; of the rotated ones the rotated matrix, transposed (its column copy is row-wise)."""
    _, row, _, data = case.split(".", 3)
    if ".rht." in case:
        x = load(file)[f"input.bf16.nvfp4.{data}.x"]
        return to_numpy(hadamard(to_device(x, device), axis=0)).T
    kind = "nvfp4" if row == "nvfp4" else "mx"
    inputs = load("blocks_nvfp4" if file == "blocks_nvfp4_variants" else file)
    return inputs[f"input.f32.{kind}.{data}.x"]


def agrees(q: Any, tensors: dict[str, np.ndarray], case: str, prefix: str) -> None:
    """Codes (of FP4 by Transformer Engine's reference up to the sign of zero), scales and tensor scales."""
    fmt, reference = q.dtype, case.split(".")[0]
    codes, scale = (to_numpy(raw) for raw in (q.operand.codes, q.operand.scale))
    theirs, wanted = tensors[f"{case}.{prefix}data"], tensors[f"{case}.{prefix}scale"]
    scale = np.repeat(scale, (fmt.block_shape or (1, 1))[0], axis=0)[: wanted.shape[0]]
    np.testing.assert_array_equal(scale, wanted)
    if fmt.element.packed:
        codes, theirs = (unpack(part, q.shape[1]) for part in (codes, theirs))
    if reference == "te_ref":
        codes, theirs = (np.where(part == 8, 0, part) for part in (codes, theirs))
    bad = np.repeat(wanted == 0xFF, 32, axis=1)[:, : q.shape[1]] if fmt.scale_family == "e8m0" else codes != codes
    np.testing.assert_array_equal(codes[~bad], theirs[~bad])
    found = None if q.tensor_scale is None else np.ravel(np.asarray(q.tensor_scale))
    if reference == "te_ref":
        a = tensors[f"{case}.{prefix}amax"]
        np.testing.assert_array_equal(found, a / np.float32(6 * fmt.scale_bound))
    elif reference == "modelopt":
        assert found == tensors[f"{case}.scale_2"].reshape(-1)
    elif reference == "compressed_tensors":
        assert found == np.float32(1) / tensors[f"{case}.global_scale"].reshape(-1)


@pytest.mark.parametrize(("file", "case", "convention"), CASES)
def test_bytes(device: Any, file: str, case: str, convention: str | None) -> None:
    fmt, tensors, x = GROUPS[".".join(case.split(".")[:3])][0], load(file), source(file, case, device)
    if f"{case}.data" in tensors:
        agrees(nf.quantize(nf.asarray(x), fmt, convention=convention), tensors, case, "")
    if f"{case}.columnwise_data" in tensors and not (fmt.square and fmt.four_over_six):
        agrees(
            nf.quantize(nf.asarray(x if ".rht." in case else x.T), fmt, convention=convention), tensors, case,
            "columnwise_",
        )  # fmt: skip
        # Blocks along the first axis of the matrix itself: the same numbers.
        one = nf.quantize(nf.asarray(x if ".rht." not in case else x.T), fmt, axis=0, convention=convention)
        codes = unpack(to_numpy(one.operand.codes), one.shape[0], 0).T
        theirs = unpack(tensors[f"{case}.columnwise_data"], one.shape[0])
        np.testing.assert_array_equal(np.where(codes == 8, 0, codes), np.where(theirs == 8, 0, theirs))
