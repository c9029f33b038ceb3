"""The table of stems: one operation, one name, and every place that holds a part of it.

``kernels/<stem>.py`` (contract), ``kernels/cpu/<stem>.py`` and ``kernels/cuda/<stem>.py`` exist for
each stem; the columns say where the rest is. A place that is absent says why. ``tests/structure``
compares table and tree both ways.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Absent:
    """A place that a stem does not have, and why."""

    reason: str


@dataclass(frozen=True)
class Stem:
    """One operation.

    Attributes:
        name: the stem.
        gradient: file of the gradient rule, relative to the package.
        sources: CUDA sources in ``kernels/cuda``.
        oracle: file of the slow exact or float64 twin, relative to the repository.
        test: file of the comparing test, relative to the repository.
        benchmark: file that times it, relative to the repository.
    """

    name: str
    gradient: str | Absent
    sources: tuple[str, ...] | Absent
    oracle: str | Absent
    test: str
    benchmark: str | Absent


_NO_GRADIENT = Absent("used inside rules; has none of its own")


def _stem(
    name: str,
    *,
    gradient: str | Absent = _NO_GRADIENT,
    sources: tuple[str, ...] | Absent | None = None,
    oracle: str | Absent | None = None,
    benchmark: str | Absent | None = None,
) -> Stem:
    """A row with the usual places filled in."""
    return Stem(
        name=name,
        gradient=gradient,
        sources=(f"{name}.cu",) if sources is None else sources,
        oracle=f"tests/oracles/{name}.py" if oracle is None else oracle,
        test=f"tests/kernels/test_{name}.py",
        benchmark=f"benchmarks/bench_{name}.py" if benchmark is None else benchmark,
    )


STEMS: dict[str, Stem] = {
    s.name: s
    for s in (
        _stem("amax"),
        _stem(
            "quantize",
            gradient="arrays/functions/quantization.py",
            sources=(
                "quantize.cu",
                "quantize_tensor.cu",
                "quantize_block1d.cu",
                "quantize_block2d.cu",
                "quantize_block128.cu",
                "quantize_pair.cu",
                "quantize_levels.cu",
            ),
        ),
        _stem("hadamard"),
        _stem("dequantize", gradient="arrays/functions/quantization.py"),
        _stem("cast", gradient="arrays/functions/conversion.py"),
        _stem("elementwise", gradient="arrays/functions/elementwise.py"),
        _stem("reduce", gradient="arrays/functions/reductions.py"),
        _stem("transpose", gradient="arrays/functions/shape.py"),
        _stem("random", gradient=Absent("draws have no inputs")),
        _stem("gemm", gradient="arrays/functions/matmul.py", sources=Absent("cuBLASLt (kernels/cublaslt)")),
        _stem(
            "activation",
            gradient="nn/functional/activation.py",
            sources=("activation.cu", "activation_gated.cu"),
        ),
        _stem("layer_norm", gradient="nn/functional/layer_norm.py"),
        _stem("rms_norm", gradient="nn/functional/rms_norm.py"),
        _stem("cross_entropy", gradient="nn/functional/cross_entropy.py"),
        _stem("softmax", gradient="nn/functional/softmax.py"),
        _stem(
            "attention",
            gradient="nn/functional/attention.py",
            sources=Absent("cuDNN (kernels/cudnn), or composed of gemm, softmax and dropout"),
        ),
        _stem("attention_decode", gradient=Absent("inference only")),
        _stem("embedding", gradient="nn/functional/embedding.py"),
        _stem("dropout", gradient="nn/functional/dropout.py"),
        _stem("rope", gradient="nn/functional/rope.py"),
        _stem("adam", gradient=Absent("an update rule")),
        _stem("sgd", gradient=Absent("an update rule")),
        _stem("bias_grad"),
        _stem("scale_layout"),
        _stem("weight_only_gemm", sources=("weight_only_gemm.cu", "weight_only_gemm_pack.cu")),
        _stem("multi_tensor", sources=("multi_tensor.cu", "multi_tensor_pieces.cu")),
    )
}
