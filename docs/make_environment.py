"""Writes docs/environment.md from nvfp/config.py and the table below: ``python -m docs.make_environment``."""

from __future__ import annotations

from pathlib import Path

from nvfp.config import SWITCHES

PAGE = Path(__file__).with_name("environment.md")
HEAD = """# Environment variables

Written by `python -m docs.make_environment` from `nvfp/config.py` and its own table; a test compares them. Values are
read when they are needed; nothing about numerics hangs on a variable.

| variable | unset | meaning |
| --- | --- | --- |
"""
TESTS = """
Read by the tests only:

| variable | unset | meaning |
| --- | --- | --- |
"""
TE = """
## Those of Transformer Engine

None of them is read here. What each of them chooses is chosen by an argument, so that a model's code says how it
computes:

| Transformer Engine | here |
| --- | --- |
"""
_NO_BUILD = "nothing is built: kernels are compiled by NVRTC at their first use and kept in `NVFP_CACHE_DIR`"
_NO_SEVERAL = "no counterpart: computing on several devices is not built"
_NO_JAX = "no counterpart: `nf.interop.jax.call` runs nvfp functions inside jax, nothing replaces its primitives"
_CHOICE = "`backend=` of `nvfp.nn.functional.attention.attention`; `nf.explain_attention` tells the choice"
_NO_FLASH = "no counterpart: flash-attn needs torch and is not used"
_FP8_ATTENTION = "the recipe in force where the layer runs (`nf.autocast` nests, `policy=` goes by name)"
_ALWAYS_FUSED = "no counterpart: fused and unfused kernels give the same bits, so nobody has to choose"
_MARGIN = "no counterpart: kernels take the whole device"
_4OVER6 = "`NVFP4BlockScaling(nvfp4_4over6=, nvfp4_4over6_e4m3_use_256=, nvfp4_4over6_err_mode=)`"
_DEBUG = "`nf.explain_attention`; `NVFP_DEBUG` checks indices on CUDA"
_TESTS = "`nf.inspect.record` and `nf.inspect.bisect`, without a file of settings"

# Variables of Transformer Engine's docs/envvars.rst and some that its source reads -> the counterpart.
COUNTERPARTS: tuple[tuple[str, str], ...] = (
    ("NVTE_BUILD_DEBUG NVTE_BUILD_MAX_JOBS NVTE_BUILD_THREADS_PER_JOB NVTE_FRAMEWORK NVTE_USE_CCACHE NVTE_CCACHE_BIN "
     "NVTE_CMAKE_BUILD_DIR NVTE_RELEASE_BUILD NVTE_PROJECT_BUILDING NVTE_UB_WITH_MPI NVTE_ENABLE_NVSHMEM "
     "NVTE_WITH_CUTEDSL NVTE_BUILD_ACTIVATION_WITH_FAST_MATH", _NO_BUILD),
    ("NVTE_BUILD_NUM_PHILOX_ROUNDS", "no counterpart: 10 rounds, the same bits on CPU and GPU"),
    ("NVTE_CUDA_ARCHS", "`python -m nvfp.kernels.compile --arch`, only to fill the cache ahead of time"),
    ("NVTE_CUDA_INCLUDE_DIR", "no counterpart: the headers come with the extra; `python -m nvfp` shows them"),
    ("NVTE_TENSOR_HANDLE_POOL_SIZE_MB NVTE_GROUPED_TENSOR_HANDLE_POOL_SIZE_MB", "no counterpart: there are no handles"),
    ("NVTE_ENABLE_CUTEDSL_BACKEND", "no counterpart: there is one kernel for each case"),
    ("NVTE_FLASH_ATTN NVTE_FLASH_ATTN_V2 NVTE_FLASH_ATTN_V3 NVTE_FLASH_ATTN_V4 NVTE_FUSED_ATTN_USE_FAv2_BWD",
     _NO_FLASH),
    ("NVTE_FUSED_ATTN NVTE_UNFUSED_ATTN NVTE_FUSED_ATTN_BACKEND", _CHOICE),
    ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "no counterpart: every kernel repeats its bits, attention's backward too"),
    ("NVTE_FUSED_RING_ATTENTION_USE_SCAN NVTE_BATCH_MHA_P2P_COMM NVTE_AG_P2P_MULTI_ATOMIC", _NO_SEVERAL),
    ("NVTE_APPLY_QK_LAYER_SCALING", "`softmax_scale=` of `nf.nn.DotProductAttention`; scores are float32 anyway"),
    ("NVTE_UNFUSED_FP8_UPDATE", _ALWAYS_FUSED),
    ("NVTE_FP8_DPA_BWD NVTE_DPA_FP8CS_O_in_F16 NVTE_DPA_FP8_RECIPE NVTE_DPA_FP8_RECIPE_DPA NVTE_DPA_FP8_RECIPE_MHA "
     "NVTE_DPA_FP8_FORMAT NVTE_DPA_FP8DS_AMAX_ALGO NVTE_DPA_FP8DS_AMAX_HISTLEN NVTE_DPA_FP8DS_REDUCE_AMAX "
     "NVTE_UnfusedDPA_Emulate_FP8", _FP8_ATTENTION),
    ("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES", "`Float8CurrentScaling(use_power_2_scales=True)`"),
    ("NVTE_FP8_BLOCK_SCALING_FP32_SCALES", "`Float8BlockScaling(use_f32_scales=True)`"),
    ("NVTE_USE_FAST_MATH", "no counterpart: one arithmetic, that of the float64 twins' roundings"),
    ("NVTE_DISABLE_NVRTC", "no counterpart: a filled `NVFP_CACHE_DIR` needs no compiler"),
    ("NVTE_USE_CUTLASS_GROUPED_GEMM NVTE_CUTLASS_GROUPED_GEMM_WARN_FALLBACK", "no counterpart: no grouped GEMM yet"),
    ("NVTE_NVFP4_ROW_SCALED_ACTIVATION", "`NVFP4BlockScaling(row_scaled_activation=True)`"),
    ("NVTE_NVFP4_DISABLE_RHT NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING NVTE_NVFP4_DISABLE_2D_QUANTIZATION",
     "`NVFP4BlockScaling(disable_rht=, disable_stochastic_rounding=, disable_2d_quantization=)`"),
    ("NVTE_NVFP4_4OVER6 NVTE_NVFP4_4OVER6_E4M3_USE_256 NVTE_NVFP4_4OVER6_ERR_MODE", _4OVER6),
    ("NVTE_NVFP4_4OVER6_ERR_USE_FAST_MATH", "no counterpart: errors are compared exactly as B5.8 of TE says"),
    ("NVTE_TORCH_COMPILE NVTE_BIAS_GELU_NVFUSION NVTE_BIAS_DROPOUT_FUSION", _ALWAYS_FUSED),
    ("NVTE_CUDNN_MXFP8_NORM_OUTPUT_IN_INPUT_DTYPE", "no counterpart: a norm's output is rounded to its input's dtype"),
    ("NVTE_FWD_LAYERNORM_SM_MARGIN NVTE_BWD_LAYERNORM_SM_MARGIN NVTE_INF_LAYERNORM_SM_MARGIN NVTE_EXT_MARGIN_SM",
     _MARGIN),
    ("NVTE_CPU_OFFLOAD_V1", "no counterpart: `nf.checkpoint` recomputes instead"),
    ("NVTE_DEBUG NVTE_DEBUG_LEVEL NVTE_PRINT_LAYER_NUMBER NVTE_PRINT_RANK", _DEBUG),
    ("NVTE_NVTX_ENABLED", "`NVFP_NVTX`, or `nf.inspect.nvtx`"),
    ("NVTE_DEBUG_NUMERICS NVTE_TEST_NVINSPECT_ENABLED NVTE_TEST_NVINSPECT_CONFIG_FILE "
     "NVTE_TEST_NVINSPECT_FEATURE_DIRS NVTE_TEST_ARTIFACTS_DIR", _TESTS),
    ("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "no counterpart: no file holds pickles"),
    ("NVTE_ONNX_KVCACHE_MAX_SEQ_LEN", "no counterpart: no export to ONNX"),
    ("NVTE_JAX_CUSTOM_CALLS NVTE_JAX_CUSTOM_CALLS_RE NVTE_JAX_UNITTEST_LEVEL NVTE_USE_PYTORCH_TRITON "
     "NVTE_JAX_ENFORCE_TRITON_AUTOTUNING", _NO_JAX),
)  # fmt: skip


def render() -> str:
    """Return the page's text."""
    rows = dict.fromkeys(("library", "tests"), "")
    for s in SWITCHES.values():
        rows[s.scope] += f"| `{s.name}` | {f'`{s.default}`' if s.default else ''} | {s.doc} |\n"
    theirs = "".join(f"| {', '.join(f'`{v}`' for v in names.split())} | {ours} |\n" for names, ours in COUNTERPARTS)
    return HEAD + rows["library"] + TESTS + rows["tests"] + TE + theirs


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
