"""torchao's safetensors: ``<module>._<name>_qdata`` and ``_scale``, and JSON per tensor in the metadata of the file.

`Float8Tensor` has a float32 scale per block of any shape, `MXTensor` E8M0 scales, `NVFP4Tensor` E4M3 scales and mostly
a ``per_tensor_scale``, which multiplies. Scales that lie in the 128 x 4 tiles of cuBLASLt are put in order.

Source: pytorch/ao 0.18 (torchao/prototype/safetensors/).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from nvfp.arrays.quantized import QuantizedArray
from nvfp.dtypes import elements as el
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.scale_layout import from_tiles128x4
from nvfp.errors import FileFormatError, message
from nvfp.files.dialects import geometry
from nvfp.files.dialects.dialect import Dialect, Written
from nvfp.files.dialects.entry import Entry, as_scale
from nvfp.files.dialects.geometry import Found
from nvfp.files.header import TensorEntry
from nvfp.files.host import parts_of
from nvfp.files.quant_config import Rule
from nvfp.files.shards import Shards

_CLASSES = ("Float8Tensor", "MXTensor", "NVFP4Tensor")
_ROLES = {"qdata": "codes", "scale": "scale", "per_tensor_scale": "tensor_scale"}


def find(shards: Shards) -> tuple[str, dict[str, Entry]] | None:
    """Return the dialect's name and its quantized arrays, or None for files without its metadata.

    Args:
        shards: the tensors of the files.

    Raises:
        FileFormatError: metadata that are damaged or name a class that nvfp does not read.
    """
    entries: dict[str, Entry] = {}
    ours = False
    for metadata in shards.metadata:
        for name in _json(metadata, "tensor_names", list) if "tensor_names" in metadata else ():
            fields = _json(metadata, name, dict)
            ours = True
            if fields.get("_type") != "Tensor":
                entries[name] = _entry(name, fields, shards.entries)
    return ("torchao", entries) if ours else None


def _entry(name: Any, fields: Mapping[str, Any], tensors: Mapping[str, TensorEntry]) -> Entry:
    data, kind = fields.get("_data"), fields.get("_type")
    if kind not in _CLASSES or not isinstance(data, dict):
        _refuse(f"{name} as {str(kind)[:40]}", f"one of {_CLASSES}")
    names = {role: _part(name, torchs) for torchs, role in _ROLES.items() if _part(name, torchs) in tensors}
    if not {"codes", "scale"} <= set(names):
        _refuse(f"{name} without {_part(name, 'qdata')} or its scale", "the tensors that the metadata name")
    codes, scale = tensors[names["codes"]], tensors[names["scale"]]
    packed = codes.dtype == "U8" and kind != "Float8Tensor" and bool(codes.shape)
    shape = (*codes.shape[:-1], 2 * codes.shape[-1]) if packed else codes.shape
    tiled = data.get("is_swizzled_scales") is True
    plain = _plain_scales(shape, data) if tiled else scale.shape
    word = tensors[names["tensor_scale"]].shape if "tensor_scale" in names else None
    dtype, scales = _fit(str(kind), Found(str(name), shape, codes.dtype, plain, word), data, scale.dtype)

    def arrange(parts: dict[str, np.ndarray]) -> None:
        found = parts["scale"]
        if tiled:
            rows = int(np.prod(scales[:-1]))
            found = from_tiles128x4(found.view(np.uint8).reshape(-1), (rows, scales[-1])).view(found.dtype)
        parts["scale"] = as_scale(found, dtype).reshape(scales)
        if "tensor_scale" in parts:
            parts["tensor_scale"] = parts["tensor_scale"].astype(np.float32).reshape(())

    nbytes = sum(tensors[part].nbytes for part in names.values())
    return Entry(str(name), str(kind), dtype, shape, names, nbytes, len(shape) - 1, arrange)


def _fit(kind: str, found: Found, data: Mapping[str, Any], scale: str) -> tuple[QuantDType, tuple[int, ...]]:
    block = data.get("block_size")
    if kind == "Float8Tensor" and scale in ("F32", "BF16", "F16") and found.codes in ("F8_E4M3", "F8_E5M2"):
        return geometry.float_scaled(found, _block_rule(found, block))
    group = block if type(block) is int and block > 0 else None
    if kind == "MXTensor" and scale in ("F8_E8M0", "U8"):
        if found.codes == "U8" and _elem(data) in ("float4_e2m1fn_x2", "float4_e2m1fn"):
            return geometry.mx_four(found, Rule(group=group))
        if found.codes in ("F8_E4M3", "F8_E5M2"):
            return geometry.mx_eight(found, Rule(group=group))
    if kind == "NVFP4Tensor" and found.codes == "U8" and scale == "F8_E4M3":
        return geometry.two_level(found, Rule(group=group))
    return _refuse(f"{found.name}: {kind} of {found.codes} with scales {scale}", "dtypes that nvfp has")


def _block_rule(found: Found, block: Any) -> Rule:
    """The strategy that a ``block_size`` in the axes of the array means."""
    whole = isinstance(block, list) and len(block) == len(found.shape) and all(type(n) is int and n > 0 for n in block)
    if block is None or not whole or len(block) < 2:
        return Rule()
    rows, columns = block[-2:]
    if list(found.shape) == block:
        return Rule(strategy="tensor")
    if rows == 1:
        return Rule(strategy="channel") if columns == found.shape[-1] else Rule(strategy="group", group=columns)
    return Rule(strategy="block", block=(rows, columns))


def _plain_scales(shape: tuple[int, ...], data: Mapping[str, Any]) -> tuple[int, ...]:
    block = data.get("block_size")
    if not shape or type(block) is not int or block <= 0:
        _refuse(f"block_size {str(block)[:40]} of tiled scales", "a length")
    return (*shape[:-1], -(-shape[-1] // block))


def _elem(data: Mapping[str, Any]) -> Any:
    found = data.get("elem_dtype")
    return found.get("_data") if isinstance(found, dict) else found


def _part(name: Any, part: str) -> str:
    module, _, last = str(name).rpartition(".")
    return f"{module}._{last}_{part}"


def _json(metadata: Mapping[str, str], key: Any, kind: type) -> Any:
    try:
        found = json.loads(metadata[key])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        _refuse(f"{str(key)[:60]} ({type(error).__name__})", "JSON for each tensor in the metadata")
    if not isinstance(found, kind):
        _refuse(f"{str(key)[:60]} as {type(found).__name__}", f"a {kind.__name__} in the metadata")
    return found


def _spell(name: str, q: QuantizedArray) -> tuple[dict[str, np.ndarray], Any]:
    """The tensors and the metadata of one array."""
    codes, scale, word = parts_of(name, q)
    fmt = q.dtype
    if "." not in name:
        _refuse(f"the name {name}", "names in a module (module.weight) in dialect torchao", "save_model")
    if geometry.is_float_scaled(fmt):
        kind, data = "Float8Tensor", _float8(q)
        scale = scale.reshape((1,) * q.ndim) if fmt.block is None else scale
    elif geometry.is_mx_eight(fmt) or geometry.is_mx_four(fmt):
        kind, data = "MXTensor", _mx(fmt)
        scale = scale.view(el.float8_e8m0fnu.dtype)
    elif geometry.is_two_level(fmt) and not fmt.per_row_tensor_scale:
        kind, data = "NVFP4Tensor", {
            "is_swizzled_scales": False, "use_triton_kernel": False, "act_quant_kwargs": None, "block_size": 16,
            "orig_dtype": _dtype("bfloat16"),
        }  # fmt: skip
    else:
        _refuse(f"{name} as {fmt}", "FP8 with float32 scales, MXFP8, MXFP4 or NVFP4 in dialect torchao", "save_model")
    found = {"qdata": codes, "scale": scale, **({} if word is None else {"per_tensor_scale": word})}
    names = ["per_tensor_scale"] if word is not None else []
    entry = {"_type": kind, "_data": data, "_tensor_data_names": [*names, "qdata", "scale"]}
    return {_part(name, part): value for part, value in found.items()}, entry


def _float8(q: QuantizedArray) -> dict[str, Any]:
    block = q.dtype.block
    sizes = list(q.shape) if block is None else [1] * (q.ndim - 2) + (
        list(block) if isinstance(block, tuple) else [1, block]
    )  # fmt: skip
    return {
        "block_size": sizes, "mm_config": None, "act_quant_kwargs": None,
        "kernel_preference": {"_type": "KernelPreference", "_data": "AUTO"}, "dtype": _dtype("bfloat16"),
    }  # fmt: skip


def _mx(fmt: QuantDType) -> dict[str, Any]:
    name = "float4_e2m1fn_x2" if fmt.element.packed else fmt.element.name
    return {
        "elem_dtype": _dtype(name), "block_size": 32, "orig_dtype": _dtype("bfloat16"),
        "kernel_preference": {"_type": "KernelPreference", "_data": "EMULATED"}, "act_quant_kwargs": None,
        "is_swizzled_scales": False,
    }  # fmt: skip


def _dtype(name: str) -> dict[str, str]:
    return {"_type": "torch.dtype", "_data": name}


def _collect(entries: Mapping[str, Any], dense: list[str]) -> dict[str, str]:
    """The metadata of one file."""
    plain = {name: {"_type": "Tensor"} for name in dense}
    texts = {name: json.dumps(entry) for name, entry in {**entries, **plain}.items()}
    return {**texts, "tensor_names": json.dumps([*entries, *dense])}


def _config(written: Written) -> dict[str, Any]:
    kinds = {row.layout: row for row in written.rows}
    kind, row = next(iter(kinds.items()))
    by_kind: dict[str, tuple[str, int, dict[str, Any]]] = {
        "Float8Tensor": ("Float8WeightOnlyConfig", 2, {"weight_dtype": _dtype(row.dtype.element.name)}),
        "NVFP4Tensor": ("NVFP4WeightOnlyConfig", 1, {}),
        "MXTensor": ("MXDynamicActivationMXWeightConfig", 1, {
            "block_size": 32, "activation_dtype": _mx(row.dtype)["elem_dtype"],
            "weight_dtype": _mx(row.dtype)["elem_dtype"],
        }),
    }  # fmt: skip
    name, version, data = by_kind[kind]
    return {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": name, "_version": version, "_data": data}},
        "modules_to_not_convert": list(written.dense),
    }


def _refuse(got: str, expected: str, op: str = "open_checkpoint") -> NoReturn:
    raise FileFormatError(message(op, expected, got, "choose dialect nvfp, or mend the file"))


TORCHAO = Dialect("torchao", ("torchao",), (), _config, spell=_spell, collect=_collect)
