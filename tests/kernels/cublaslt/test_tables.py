"""Type map, routes and records: data that no GPU is needed for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from nvfp.capability import GEMM_MODES, expansion
from nvfp.dtypes.formats import FORMATS, QuantDType, fp8_e4m3, fp8_e4m3_b128, fp8_e5m2, mxfp8_e4m3, nvfp4
from nvfp.kernels.cublaslt import typemap as tm
from nvfp.kernels.cublaslt.problem import GemmProblem, Matrix
from nvfp.optional import need
from tests.kernels.cublaslt.emulator import DESC_WIDTHS, LAYOUT_WIDTHS, PREFERENCE_WIDTHS
from tests.kernels.gemm_operands import BF16, DENSE, F16, F32, F64, operand
from tests.oracles.gemm import values

DESCRIPTOR = (
    tm.POINTER_MODE, tm.TRANSA, tm.TRANSB, tm.EPILOGUE_KIND, tm.BIAS_POINTER, tm.A_SCALE_POINTER, tm.B_SCALE_POINTER,
    tm.FAST_ACCUM, tm.BIAS_DATA_TYPE, tm.A_SCALE_MODE, tm.B_SCALE_MODE, tm.AUX_POINTER, tm.AUX_LD, tm.D_SCALE_POINTER,
    tm.AMAX_D_POINTER,
)  # fmt: skip
PREFERENCE = (
    tm.MAX_WORKSPACE, tm.REDUCTION_SCHEMES, tm.MIN_ALIGNMENT_A, tm.MIN_ALIGNMENT_B, tm.MIN_ALIGNMENT_C,
    tm.MIN_ALIGNMENT_D,
)  # fmt: skip


def widths(attributes: tuple[tm.Attribute, ...]) -> dict[int, int]:
    return {a.number: np.dtype(a.type).itemsize for a in attributes}


def test_attribute_widths_are_those_of_the_header() -> None:
    assert widths(DESCRIPTOR) == DESC_WIDTHS
    assert widths((tm.BATCH_COUNT, tm.BATCH_STRIDE)) == LAYOUT_WIDTHS
    assert widths(PREFERENCE) == PREFERENCE_WIDTHS
    assert tm.HEURISTIC.itemsize == 96 and tm.HEURISTIC.fields is not None
    assert [tm.HEURISTIC.fields[f][1] for f in ("algo", "workspace", "state", "waves")] == [0, 64, 72, 76]


TYPES = {
    "float32": "32F", "float64": "64F", "float16": "16F", "bfloat16": "16BF",
    "float8_e4m3fn": "8F_E4M3", "float8_e5m2": "8F_E5M2", "float4_e2m1fn": "4F_E2M1",
}  # fmt: skip


@pytest.mark.gpu
def test_numbers_are_those_of_the_binding() -> None:
    modules = ("nvmath.bindings.cublasLt", "nvmath.bindings.cublas", "nvmath")
    lt, cublas, nvmath = (need(name, extra="cuda13") for name in modules)
    for a in DESCRIPTOR:
        assert np.dtype(lt.get_matmul_desc_attribute_dtype(a.number)).itemsize == np.dtype(a.type).itemsize, a
    for a in (tm.BATCH_COUNT, tm.BATCH_STRIDE):
        assert np.dtype(lt.get_matrix_layout_attribute_dtype(a.number)).itemsize == np.dtype(a.type).itemsize, a
    for a in PREFERENCE:
        assert np.dtype(lt.get_matmul_preference_attribute_dtype(a.number)).itemsize == np.dtype(a.type).itemsize, a
    names = {
        lt.MatmulDescAttribute: ("POINTER_MODE", "TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "A_SCALE_POINTER",
                                 "B_SCALE_POINTER", "FAST_ACCUM", "BIAS_DATA_TYPE", "A_SCALE_MODE", "B_SCALE_MODE",
                                 "EPILOGUE_AUX_POINTER", "EPILOGUE_AUX_LD", "D_SCALE_POINTER", "AMAX_D_POINTER"),
        lt.MatmulPreferenceAttribute: ("MAX_WORKSPACE_BYTES", "REDUCTION_SCHEME_MASK",
                                       "MIN_ALIGNMENT_A_BYTES", "MIN_ALIGNMENT_B_BYTES",
                                       "MIN_ALIGNMENT_C_BYTES", "MIN_ALIGNMENT_D_BYTES"),
        lt.MatrixLayoutAttribute: ("BATCH_COUNT", "STRIDED_BATCH_OFFSET"),
    }  # fmt: skip
    ours = (DESCRIPTOR, PREFERENCE, (tm.BATCH_COUNT, tm.BATCH_STRIDE))
    for (theirs, wanted), attributes in zip(names.items(), ours, strict=True):
        assert [int(theirs[name]) for name in wanted] == [a.number for a in attributes]
    assert {m: int(lt.MatmulMatrixScale[m]) for m in tm.SCALE_MODE} == tm.SCALE_MODE
    for name, number in (
        ("DEFAULT", tm.EPILOGUE["default"]), ("BIAS", tm.EPILOGUE_BIAS), ("GELU", tm.EPILOGUE["gelu"]),
        ("GELU_AUX_BIAS", tm.EPILOGUE["gelu"] + tm.EPILOGUE_AUX + tm.EPILOGUE_BIAS), ("DGELU", tm.EPILOGUE["dgelu"]),
    ):  # fmt: skip
        assert int(lt.Epilogue[name]) == number
    assert (int(lt.PointerMode.HOST), int(lt.PointerMode.DEVICE)) == (tm.POINTER_HOST, tm.POINTER_DEVICE)
    compute = {"float32": cublas.ComputeType.COMPUTE_32F, "float64": cublas.ComputeType.COMPUTE_64F,
               "tf32": cublas.ComputeType.COMPUTE_32F_FAST_TF32}  # fmt: skip
    assert {k: int(v) for k, v in compute.items()} == tm.COMPUTE_TYPE
    found = {k: int(nvmath.CudaDataType[f"CUDA_R_{v}"]) for k, v in TYPES.items()}
    assert found == tm.DATA_TYPE
    assert lt.matmul_heuristic_result_dtype.itemsize == tm.HEURISTIC.itemsize


def test_every_mode_has_a_number_and_its_elements_a_type() -> None:
    for mode in GEMM_MODES:
        assert mode.name in tm.SCALE_MODE and all(e.name in tm.DATA_TYPE for e in mode.elements)


SQUARE128 = fp8_e4m3_b128.replace(block=(128, 128))
KINDS: list[QuantDType | np.dtype] = [*FORMATS.values(), nvfp4.replace(block=(16, 16)), SQUARE128, *DENSE]


def test_routes_are_symmetric_and_exact() -> None:
    for a, b in product(KINDS, KINDS):
        route = tm.route(a, b, (9, 0))
        other = tm.route(b, a, (9, 0))
        assert (route.dtype, route.modes) == (other.dtype, other.modes and other.modes[::-1])
        assert (route.modes is None) != (route.dtype is None)
        if route.dtype is not None:
            assert tm.holds(route.dtype, a) and tm.holds(route.dtype, b)
        assert tm.route(a, b, (9, 0), exact=True).modes is None
        assert tm.route(a, b, (9, 0), wide=True).dtype == F64


def test_native_pairs() -> None:
    native = {(a.name, b.name) for a, b in product(FORMATS.values(), FORMATS.values()) if tm.route(a, b, (9, 0)).modes}
    blocks = ("fp8_e4m3_b128", "fp8_e4m3_b128")
    assert native == {("fp8_e4m3", "fp8_e4m3"), ("fp8_e4m3", "fp8_e5m2"), ("fp8_e5m2", "fp8_e4m3"), blocks}
    assert tm.route(fp8_e4m3, fp8_e4m3, (8, 9)).modes is not None
    assert tm.route(fp8_e4m3, fp8_e4m3, (8, 6)).dtype == BF16
    assert tm.route(fp8_e4m3, fp8_e4m3, (9, 0), native=False).dtype == BF16


def test_native_pairs_of_blocks() -> None:
    rows, free = fp8_e4m3_b128, fp8_e4m3_b128.replace(power_of_two_scales=False)
    narrow = rows.replace(element="float8_e5m2")
    for a, b, route in (
        (rows, rows, "native VEC128_32F"),
        (rows, SQUARE128, "native VEC128_32F x BLK128x128_32F"),
        (SQUARE128, narrow, "native BLK128x128_32F x VEC128_32F"),
        (SQUARE128, SQUARE128, "as bfloat16"),
        (free, rows, "native VEC128_32F"),
        (narrow, narrow, "as bfloat16"),
        (rows, fp8_e4m3, "as bfloat16"),
        (rows.replace(block=64), rows, "as bfloat16"),
    ):
        assert str(tm.route(a, b, (9, 0))) == route
    for chip in ((8, 9), (10, 0), (12, 0)):
        assert (str(tm.route(rows, rows, chip)), str(tm.route(rows, free, chip))) == ("as bfloat16", "as float32")


@pytest.mark.parametrize("kind", [k for k in KINDS if isinstance(k, QuantDType)], ids=lambda k: k.name)
def test_holds_is_true_of_the_values(kind: QuantDType) -> None:
    rng = np.random.default_rng(0)
    x = operand(rng, kind, (32, 64))
    unscaled = np.float32(1) if kind.block is None else x.scale
    x = x.__class__(**{f: getattr(x, f) for f in x.__slots__} | {"tensor_scale": None, "scale": np.asarray(unscaled)})
    for dtype in (BF16, F16):
        if tm.holds(dtype, kind):
            np.testing.assert_array_equal(values(x).astype(dtype).astype(np.float64), values(x))
    assert tm.holds(BF16, kind) == (expansion(kind).name == "bfloat16")


def test_bias_dtypes() -> None:
    assert tm.bias_dtype(fp8_e4m3, fp8_e5m2, F32) == BF16
    assert tm.bias_dtype(fp8_e4m3, fp8_e5m2, F32, exact=True) == F32
    assert tm.bias_dtype(fp8_e5m2, fp8_e5m2, F32) == F32
    assert tm.bias_dtype(fp8_e4m3_b128, SQUARE128, F32) == BF16 and tm.bias_dtype(SQUARE128, SQUARE128, F32) == F32
    assert tm.bias_dtype(mxfp8_e4m3, mxfp8_e4m3, F32) == F32
    assert [tm.bias_dtype(fp8_e4m3, fp8_e4m3, d) for d in (BF16, F16, F64)] == [BF16, F16, F64]
    for element, outputs in tm.OUTPUTS.items():
        for d in outputs:  # what the epilogue takes holds what the contract hands over
            narrow = element.startswith(("float8", "float4")) and d not in ("bfloat16", "float16")
            assert tm.holds(tm.epilogue_bias(element, d), BF16 if narrow else tm.NAMED[d])


def test_record_in_cublas_terms() -> None:
    x, w, y = Matrix("bfloat16", 40), Matrix("bfloat16", 48, transposed=True, stride=7), Matrix("float32", 24)
    record = GemmProblem(16, 24, 32, x, w, y, batch=3, bias="float32", accumulate=True, device_alpha=True)
    assert record.layouts() == ((14, 32, 24, 48, 3, 7), (14, 32, 16, 40, 3, 0), *[(0, 24, 16, 24, 3, 0)] * 2)
    assert record.attributes() == (
        (tm.TRANSA, 1), (tm.TRANSB, 0), (tm.POINTER_MODE, 1), (tm.EPILOGUE_KIND, 4), (tm.BIAS_DATA_TYPE, 0),
    )  # fmt: skip
    assert record.compute_types == (68, 0)
    assert hash(record) == hash(GemmProblem(16, 24, 32, x, w, y, 3, "float32", True, False, True))
    assert str(record).endswith(", batch 3, + bias float32, accumulate, device_alpha")
    plain = Matrix("float64", 32)
    wide = GemmProblem(16, 24, 32, plain, Matrix("float64", 24), Matrix("float64", 24), compute="float64")
    assert wide.compute_types == (70, 1) and str(wide).endswith(", in float64")
    assert wide.layouts() == ((1, 24, 32, 24, 1, 0), (1, 32, 16, 32, 1, 0), *[(1, 24, 16, 24, 1, 0)] * 2)


@pytest.mark.parametrize(
    ("element", "mode", "number"), [("float8_e4m3fn", "VEC32_UE8M0", 2), ("float4_e2m1fn", "VEC16_UE4M3", 1)]
)
def test_records_of_block_scaled_operands(element: str, mode: str, number: int) -> None:
    """Described for compute capability 10.0 and newer; no launcher makes them yet."""
    x, w = Matrix(element, 128, scale=mode), Matrix(element, 128, transposed=True, scale=mode)
    record = GemmProblem(128, 128, 128, x, w, Matrix("bfloat16", 128), device_alpha=True)
    assert (tm.A_SCALE_MODE, number) in record.attributes() and (tm.B_SCALE_MODE, number) in record.attributes()
    assert record.layouts()[0] == (tm.DATA_TYPE[element], 128, 128, 128, 1, 0)
    assert f"scale {mode}" in str(record)
