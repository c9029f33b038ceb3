"""Every GEMM test once more through the CUDA launcher: `device` is here NumPy memory with cuBLASLt emulated."""

from tests.kernels.test_gemm import *  # noqa: F403
from tests.kernels.test_gemm_blocks128 import *  # noqa: F403
from tests.kernels.test_gemm_epilogues import *  # noqa: F403
from tests.kernels.test_gemm_operands import *  # noqa: F403
