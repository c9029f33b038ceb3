"""Check an implementation of narrow formats against the conformance vectors, with NumPy alone.

    python scripts/check_conformance.py [FOLDER] [--quantize MODULE:FUNCTION]

Shows how a project that knows nothing of nvfp uses the vectors: it reads the files, decodes codes by their bit layout,
multiplies by the scales and compares with the values there, bit for bit. Then it lets FUNCTION quantize the inputs.
``FUNCTION(x, settings, random)`` takes a float32 array, the settings of a case (see ``about`` in each file) and the
random numbers or None; it returns (codes, scale, tensor_scale or None), or None for a case that it does not cover. By
default FUNCTION is `mx_quantize` below, a plain quantizer of MX formats.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path("tests/data/conformance")
# Format: exponent bits, mantissa bits, bias, code of the largest value, code of infinity.
FLOATS: dict[str, tuple[int, int, int, int, int | None]] = {
    "float8_e4m3fn": (4, 3, 7, 0x7E, None),
    "float8_e5m2": (5, 2, 15, 0x7B, 0x7C),
    "float6_e2m3fn": (2, 3, 1, 0x1F, None),
    "float6_e3m2fn": (3, 2, 3, 0x1F, None),
    "float4_e2m1fn": (2, 1, 1, 0x7, None),
    "bfloat16": (8, 7, 127, 0x7F7F, 0x7F80),
    "float16": (5, 10, 15, 0x7BFF, 0x7C00),
}
INTEGERS = {"int8": (8, 64), "int4": (4, 1)}  # bits, steps per unit
Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]
Quantizer = Callable[[np.ndarray, dict[str, Any], np.ndarray | None], Parts | None]


def decode(codes: np.ndarray, name: str) -> np.ndarray:
    """The values of codes in float64."""
    code = codes.astype(np.int64)
    if name == "float8_e8m0fnu":
        return np.where(code == 255, np.nan, np.ldexp(1.0, code - 127))
    if name in INTEGERS:
        bits, steps = INTEGERS[name]
        return np.where(code >> (bits - 1), code - (1 << bits), code) / steps
    e, m, bias, largest, infinity = FLOATS[name]
    magnitude = code & ((1 << (e + m)) - 1)
    exponent, mantissa = magnitude >> m, magnitude & ((1 << m) - 1)
    value = np.ldexp(np.where(exponent > 0, mantissa + (1 << m), mantissa), np.maximum(exponent, 1) - bias - m)
    value = np.where(magnitude > largest, np.inf if infinity is not None else np.nan, value)
    value = np.where((magnitude > infinity) if infinity is not None else False, np.nan, value)
    return np.where(code >> (e + m), -value, value)


def spread(scale: np.ndarray, shape: tuple[int, ...], settings: dict[str, Any]) -> np.ndarray:
    """One scale per element: blocks lie along the axis; a pair [across, along] also over the other of the last two."""
    block, axis, ndim = settings["block"], settings["axis"] % len(shape), len(shape)
    if block is None:
        return np.broadcast_to(scale, shape)
    across, along = block if isinstance(block, list) else (1, block)
    for at in range(ndim):
        length = along if at == axis else across if at >= ndim - 2 else 1
        scale = np.repeat(scale, length, axis=at).take(range(shape[at]), axis=at)
    return scale


def dequantize(parts: Parts, settings: dict[str, Any]) -> np.ndarray:
    """``fl(fl(code * scale) * tensor_scale)`` in float32."""
    codes, scale, tensor_scale = parts
    factor = scale if settings["scale"] == "float32" else decode(scale, settings["scale"])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        value = decode(codes, settings["element"]).astype(np.float32)
        value = value * spread(factor.astype(np.float32), codes.shape, settings)
        if tensor_scale is None:
            return value
        rows = settings["per_row_tensor_scale"]
        return value * (np.expand_dims(tensor_scale, settings["axis"]) if rows else tensor_scale)


def mx_quantize(x: np.ndarray, settings: dict[str, Any], random: np.ndarray | None) -> Parts | None:
    """An example: E8M0 scales over float elements in 1-D blocks, rules ceil and floor, nearest even, saturating."""
    name, rule = settings["element"], settings["scale_rule"]
    plain = {"scale": "float8_e8m0fnu", "rounding": "even", "overflow": "saturate", "nonfinite": "nan_block"}
    if name not in FLOATS or rule == "even" or any(settings[key] != value for key, value in plain.items()):
        return None
    e, m, _, largest, _ = FLOATS[name]
    table = decode(np.arange(largest + 1), name)
    blocks, finite = finite_blocks(np.moveaxis(x, settings["axis"], -1), settings["block"])
    half, exponent = np.frexp(np.abs(blocks).max(-1))  # half * 2**exponent, half in [1/2, 1)
    top, emax = np.frexp(table[-1])
    byte = exponent - emax + 127 + (half > top if rule == "ceil" else 0)
    byte = np.where(half == 0, 0, np.clip(byte, 0, 254))
    codes = nearest(np.abs(blocks) / np.ldexp(1.0, byte - 127)[..., None], table)
    codes |= np.signbit(blocks) << (e + m)
    codes = np.where(finite[..., None], codes, 0x7F if e + m == 7 else 0).reshape(*byte.shape[:-1], -1)
    codes = codes[..., : x.shape[settings["axis"]]]
    back = [np.moveaxis(part, -1, settings["axis"]) for part in (codes, np.where(finite, byte, 255))]
    return back[0].astype(np.uint8), back[1].astype(np.uint8), None


def finite_blocks(rows: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of the last axis, [..., blocks, length], filled up with zeros, and which are finite; others become 0."""
    blocks = np.zeros((*rows.shape[:-1], -(-rows.shape[-1] // length), length))
    blocks.reshape(*rows.shape[:-1], -1)[..., : rows.shape[-1]] = rows
    finite = np.isfinite(blocks).all(-1)
    return np.where(finite[..., None], blocks, 0), finite


def nearest(magnitude: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The place in an ascending table of the nearest value, ties to the even place, saturating."""
    middle = (table[1:] + table[:-1]) / 2
    place = np.searchsorted(middle, magnitude)  # a tie gives the lower place
    tie = magnitude == middle.take(place, mode="clip")
    return np.where(tie & (place % 2 == 1) & (place < middle.size), place + 1, place)


def numbers(file: Any, key: str) -> np.ndarray:
    """An input as float32; bfloat16 stands as the upper half of its bits."""
    raw = np.asarray(file[key])
    return (raw.astype(np.uint32) << 16).view(np.float32) if key.endswith(".bfloat16") else raw


def difference(mine: np.ndarray | None, theirs: np.ndarray | None) -> str:
    """What differs, in words; empty for equal bits, any NaN equal to any other."""
    if mine is None or theirs is None:
        return "" if mine is theirs else f"{kind_of(mine)} in place of {kind_of(theirs)}"
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return f"{kind_of(mine)} in place of {kind_of(theirs)}"
    bits = np.dtype(f"uint{8 * mine.dtype.itemsize}")
    equal = np.ascontiguousarray(mine).view(bits) == np.ascontiguousarray(theirs).view(bits)
    count = int((~(equal.reshape(mine.shape) | ((mine != mine) & (theirs != theirs)))).sum())
    return f"{count} of {mine.size} entries differ" if count else ""


def kind_of(part: np.ndarray | None) -> str:
    """Dtype and shape, or none."""
    return "none" if part is None else f"{part.dtype} {part.shape}"


def check_file(path: Path, quantize: Quantizer) -> tuple[int, int, list[str]]:
    """How many cases were decoded and how many quantized, and what differs."""
    wrong: list[str] = []
    covered = 0
    with np.load(path) as file:
        cases: dict[str, dict[str, Any]] = json.loads(file["cases"].item())
        for name, settings in cases.items():
            tensor_scale, random = (file.get(f"{name}.{part}") for part in ("tensor_scale", "random"))
            parts: Parts = (file[f"{name}.codes"], file[f"{name}.scale"], tensor_scale)
            if told := difference(dequantize(parts, settings), file[f"{name}.values"]):
                wrong.append(f"{path.stem} {name}: values, {told}")
            found = quantize(numbers(file, settings["input"]), settings, random)
            if found is None:
                continue
            covered += 1
            if len(found) != len(parts):
                wrong.append(f"{path.stem} {name}: {len(found)} parts in place of {len(parts)}")
                continue
            for part, mine, theirs in zip(("codes", "scale", "tensor_scale"), found, parts, strict=True):
                if told := difference(mine, theirs):
                    wrong.append(f"{path.stem} {name}: {part}, {told}")
    return len(cases), covered, wrong


def check_elements(path: Path) -> list[str]:
    """The elements whose codes decode to other values than those in the file."""
    with np.load(path) as file:
        tables = {key.removesuffix(".decoded"): file[key] for key in file if key.endswith(".decoded")}
    return [
        f"{path.stem} {name}: decoded, {told}"
        for name, table in tables.items()
        if (told := difference(decode(np.arange(table.size), name).astype(np.float64), table))
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print what differs; the exit code is 1 if anything does."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="where the vectors lie")
    parser.add_argument("--quantize", default="", metavar="MODULE:FUNCTION", help="a quantizer to check")
    options = parser.parse_args(argv)
    if not (options.folder / "elements.npz").is_file():
        parser.error(f"no vectors in {options.folder}")
    module, _, function = options.quantize.partition(":")
    if bool(module) != bool(function):
        parser.error(f"expected MODULE:FUNCTION for --quantize, got {options.quantize}")
    sys.path.insert(0, "")  # a module beside the caller, as for python -m
    quantize: Quantizer = getattr(importlib.import_module(module), function) if module else mx_quantize
    wrong = check_elements(options.folder / "elements.npz")
    for path in sorted(p for p in options.folder.glob("*.npz") if p.stem != "elements"):
        cases, covered, found = check_file(path, quantize)
        wrong += found
        print(f"{path.stem}: {cases} cases decoded, {covered} of them quantized")
    print("\n".join([*wrong, f"{len(wrong)} differences"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
