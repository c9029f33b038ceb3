"""The kernels of `weight_only_gemm` run on the CPU: packing, tensor-core tiles, blocks along K; their Hopper code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nvfp.dtypes.formats import nvfp4
from nvfp.kernels.cpu import weight_only_gemm as cpu
from nvfp.kernels.cuda import weight_only_gemm as cuda
from nvfp.kernels.cuda.instances import instances
from tests.kernels.cuda import emulator
from tests.kernels.cuda.nvrtc import need_nvrtc, sass
from tests.kernels.gemm_operands import BF16, dense, operand
from tests.oracles.weight_only_gemm import weight_only_gemm
from tests.tolerances import check


def test_packing_and_product(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)
    rng = np.random.default_rng(90)
    w, x = operand(rng, nvfp4, (35, 470)), dense(rng, (3, 470), BF16)
    packed, expected = cuda.prepack(w), cpu.prepack(w)
    for one, other in zip(packed.arrays(), expected.arrays(), strict=True):
        np.testing.assert_array_equal(one, other)
    back = cuda.unpack(packed)
    np.testing.assert_array_equal(back.codes, w.codes)
    np.testing.assert_array_equal(back.scale, w.scale)
    bias = dense(rng, (35,), BF16)
    product = weight_only_gemm(x, w, bias)
    for splits in (1, 2):
        cut = cuda.Shape(2, 2, 2, 1, 1, splits)  # two tiles a block, the second missing in the last; units left over
        monkeypatch.setattr(cuda, "shape_for", lambda *_, cut=cut: cut)
        y = cuda.weight_only_gemm(x, packed, bias=bias, dtype=BF16)
        check(y, product.value, "weight_only_gemm", scale=product.scale)


def test_hopper_code(tmp_path: Path) -> None:
    need_nvrtc()
    for instance in instances("weight_only_gemm"):
        text = sass(instance, "sm_90a", tmp_path)
        assert not {"LDL", "STL"} & set(text.replace(".", " ").split()), "uses local memory"
        if instance.name == "weight_only_gemm":
            assert "HMMA.16816.F32.BF16" in text
            assert "LDG.E.128" in text
