"""Write the conformance vectors: what each format makes of given inputs, for anyone to compare with.

    python scripts/make_conformance_vectors.py [--out tests/data/conformance]

One ``.npz`` for each row of `nvfp.dtypes.FORMATS`, one for formats made by users, one for the casts of elements. All of
it comes from the exact rules in NumPy (`nvfp.dtypes`), none from a kernel, and the bytes are the same on every run:
inputs are made from Philox numbers with integer arithmetic, archives are not compressed and carry no time of their own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import zipfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from nvfp.dtypes import FORMATS, QuantDType, decode, dequantize_exact, elements as el, encode, quantize_exact
from nvfp.dtypes.elements import ELEMENTS, Element
from nvfp.dtypes.stochastic import encode_random, random_bits, random_numbers

FOLDER = Path("tests/data/conformance")
KEY, ORDINAL, STEP = 0x0123456789ABCDEF, 3, 5  # the Philox place of the stochastic cases
ROW_LANE = 0
COLUMNS = 77  # two blocks of 32 and 13 more; four of 16 and 13 more
F32, BF16 = np.dtype(np.float32), el.bfloat16.dtype
ABOUT = """Conformance vectors of narrow number formats, version 1, first made by nvfp 0.1.0.
Origin: scripts/make_conformance_vectors.py of nvfp, from its exact rules in NumPy (docs/formats.md is the written
specification); nothing here was made by other software. License: Apache-2.0.
"""
ABOUT_ROWS = """
cases: JSON text (bytes): {case: settings}. Settings: input (a key below), axis (where blocks lie), the fields of the
  format (element, block: length, [across, along] or null for one scale per tensor, scale: format of the block scale,
  tensor_scale, nonfinite, power_of_two_scales, scale_rule, four_over_six, per_row_tensor_scale), overflow, rounding;
  under given: the scale or tensor_scale (decode factors) that quantize was called with; under random: the Philox key,
  ordinal, lane and step.
input.NAME: float32; input.NAME.bfloat16: uint16, the bits of bfloat16 numbers.
CASE.codes: uint8 in the shape of the input, one code each (4- and 6-bit codes in the low bits, not packed).
CASE.scale: one per block, lengths rounded up; codes of the scale format (uint8, uint16), or float32.
CASE.tensor_scale: float32, for two-level formats: shape (), or one per row.
CASE.values: float32, element(code) * scale * tensor_scale, one float32 rounding per product; NaN stands for any NaN.
CASE.random: the numbers r of stochastic rounding, one per element.
"""
ABOUT_ELEMENTS = """
For each ELEMENT (float8_e4m3fn, ..., int8 is k/64, int4 is k):
ELEMENT.decoded: float64, the value of every code in order (NaN: any NaN).
ELEMENT.float32, ELEMENT.float64: inputs: every value, every tie, the numbers beside each, overflow, inf, NaN, zeros.
ELEMENT.SOURCE.OVERFLOW.ROUNDING: uint8 codes of these inputs; SOURCE float32 or float64, OVERFLOW saturate or nonsat,
  ROUNDING even or toward_zero.
ELEMENT.random, ELEMENT.float32.OVERFLOW.stochastic: numbers r, and the codes of the float32 inputs under them.
philox.uint8, philox.uint16: the first 64 numbers at key 0x0123456789ABCDEF, ordinal 3, lane 0, step 5.
"""

Arrays = dict[str, np.ndarray]
Case = tuple[str, str, QuantDType, dict[str, Any]]  # name, input, format, options of quantize_exact


def draw(rows: int, columns: int, low: int, high: int, stream: int) -> np.ndarray:
    """Float64 numbers of random sign, 16-bit significand and exponent in ``low .. high``."""
    shape = (3, rows, columns)
    words = random_numbers(shape, el.float8_e4m3fn, key=stream, ordinal=0, lane=0, step=0).astype(np.int64)
    magnitude = np.ldexp(1 + words[0] / 65536, low + words[1] % (high - low + 1))
    return np.where(words[2] & 1, -magnitude, magnitude)


def edges(element: Element) -> np.ndarray:
    """Ties and their neighbours under maxima at and beside the boundaries of the scale rules, [8, columns]."""
    rows, emax = 8, 2.0**element.emax
    values = np.abs(decode(np.arange(element.max_code + 1, dtype=np.uint8), element))
    ties = ((values[1:] + values[:-1]) / 2)[values[1:] <= emax]
    words = random_numbers((3, rows, COLUMNS), el.float8_e4m3fn, key=7, ordinal=0, lane=0, step=0).astype(np.int64)
    x = ties[words[0] % ties.size].astype(F32)
    for toward, rest in ((0.0, 1), (np.inf, 2)):  # a third stays, a third moves down, a third up
        x = np.where(words[1] % 3 == rest, np.nextafter(x, F32.type(toward)), x)
    x = np.where(words[2] & 1, -x, x)
    tops = F32.type(emax) * F32.type([element.max / emax, 1, 1.25, 1.5, 1.75, 1.875, 1.9375, 1.984375])
    peaks = np.concatenate([tops, np.nextafter(tops, F32.type(0)), np.nextafter(tops, F32.type(np.inf))])
    for block in range(3):
        x[:, 32 * block + 3] = peaks[(3 * np.arange(rows) + block) % peaks.size]
    return x * np.ldexp(F32.type(1), np.arange(rows)[:, None] % 7 - 3)


def inputs(fmt: QuantDType) -> Arrays:
    """The inputs of a row by name."""
    finite = np.concatenate([edges(fmt.element), draw(3, COLUMNS, -6, 3, 1)]).astype(F32)
    finite[8, 16:48], finite[9, :16], finite[10, ::5] = 0, -0.0, 0
    wide = draw(6, COLUMNS, -126, 126, 2)
    wide[0] = np.ldexp(draw(1, COLUMNS, -3, -1, 3)[0], 128)  # beyond a quarter of the largest float32
    wide[1:5] = np.ldexp(draw(4, COLUMNS, -4, 2, 4), np.arange(-40, 40, 20)[:, None])
    tiny = draw(4, COLUMNS, -149, -130, 5) * np.ldexp(1.0, np.arange(0, 20, 5))[:, None]
    nonfinite = draw(5, COLUMNS, -4, 3, 6).astype(F32)
    nonfinite[0, 5], nonfinite[1, 40], nonfinite[2, 3], nonfinite[3, 70:72] = np.inf, -np.inf, np.nan, (np.nan, -np.inf)
    nonfinite[4, :32] = np.nan
    found = {"finite": finite, "wide": wide.astype(F32), "tiny": tiny.astype(F32), "nonfinite": nonfinite}
    found["bf16.bfloat16"] = draw(5, COLUMNS, -8, 2, 8).astype(BF16)
    found["short"] = F32.type([0.75, -6.5, 3.0, -0.0, 1e-3])
    if fmt.block == 128:
        found["blocks"] = draw(5, 300, -8, 4, 9).astype(F32)
    if fmt.scale_family == "two_level":
        found["square"] = draw(40, 37, -5, 2, 10).astype(F32)
    return found


def common_cases(fmt: QuantDType, names: Sequence[str]) -> Iterator[Case]:
    """What every row shows: each input, the other axis, overflow and rounding."""
    yield from ((f"default.{name.split('.')[0]}", name, fmt, {}) for name in names)
    if fmt.block is not None:
        yield "axis0.finite", "finite", fmt, {"axis": 0}
    for name in ("finite", "bf16.bfloat16"):
        yield f"toward_zero.{name.split('.')[0]}", name, fmt, {"rounding": "toward_zero"}
        yield f"stochastic.{name.split('.')[0]}", name, fmt, {"rounding": "stochastic"}
    other = "saturate" if fmt.nonfinite == "nan_block" else "nan_block"
    yield f"{other}.nonfinite", "nonfinite", fmt.replace(nonfinite=other), {}
    saturating = fmt.replace(nonfinite="saturate") if fmt.nonfinite != "saturate" else fmt
    yield "nonsat.nonfinite", "nonfinite", saturating, {"overflow": "nonsat"}


def family_cases(fmt: QuantDType) -> Iterator[Case]:
    """The choices that the scale format of a row allows."""
    if fmt.scale_family == "e8m0":
        for rule in ("ceil", "floor", "even"):
            if rule != fmt.scale_rule:
                yield f"{rule}.finite", "finite", fmt.replace(scale_rule=rule), {}
                yield f"{rule}.wide", "wide", fmt.replace(scale_rule=rule), {}
        yield "floor_nonsat.finite", "finite", fmt.replace(scale_rule="floor"), {"overflow": "nonsat"}
    elif fmt.scale_family == "float32":
        other = fmt.replace(power_of_two_scales=not fmt.power_of_two_scales)
        yield from ((f"power_of_two_{other.power_of_two_scales}.{n}".lower(), n, other, {}) for n in ("finite", "wide"))
        if fmt.block is None:
            for overflow in ("saturate", "nonsat"):
                yield f"given_scale_{overflow}.wide", "wide", fmt, {"scale": 0.03125, "overflow": overflow}
        else:
            yield "block128x128.blocks", "blocks", fmt.replace(block=(128, 128)), {}


def nvfp4_cases(fmt: QuantDType) -> Iterator[Case]:
    """Square blocks, a tensor scale per row, 4-over-6 and a given tensor scale."""
    square, rows = fmt.replace(block=(16, 16)), fmt.replace(per_row_tensor_scale=True)
    yield from ((f"block16x16_axis{axis}.square", "square", square, {"axis": axis}) for axis in (1, 0))
    yield from ((f"per_row.{name}", name, rows, {}) for name in ("finite", "nonfinite"))
    yield "per_row_axis0.finite", "finite", rows, {"axis": 0}
    for mode in ("mae_256", "mse_256", "mae_448", "mse_448"):
        yield f"four_over_six_{mode}.finite", "finite", fmt.replace(four_over_six=mode), {}
        yield f"four_over_six_{mode}_block16x16.square", "square", square.replace(four_over_six=mode), {"axis": 1}
    yield "four_over_six_mse_256_per_row.finite", "finite", rows.replace(four_over_six="mse_256"), {}
    yield "given_tensor_scale.finite", "finite", fmt, {"tensor_scale": 0.0078125}


def user_formats() -> tuple[QuantDType, ...]:
    """A format of each scale family, and both integer elements, as users make them."""
    return (
        QuantDType("e3m2_b24_e5m2", "float6_e3m2fn", 24, "float8_e5m2"),
        QuantDType("int4_b32_bf16", "int4", 32, "bfloat16"),
        QuantDType("int4_b24_fp16_two_level", "int4", 24, "float16", tensor_scale=True),
        QuantDType("int8_b64_e8m0", "int8", 64, "float8_e8m0fnu"),
        QuantDType("int8_b16x16_fp32", "int8", (16, 16), "float32"),
        QuantDType("e2m1_b16_e4m3_one_level", "float4_e2m1fn", 16, "float8_e4m3fn"),
        QuantDType("e4m3_b32_e4m3_two_level", "float8_e4m3fn", 32, "float8_e4m3fn", tensor_scale=True),
        QuantDType("e5m2_tensor_bf16", "float8_e5m2", None, "bfloat16"),
    )


def run(name: str, x: np.ndarray, fmt: QuantDType, options: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    """The settings and the arrays of one case."""
    chosen = {"axis": -1, "overflow": "saturate", "rounding": "even", **options}
    given = {key: chosen.pop(key) for key in ("scale", "tensor_scale") if key in chosen}
    factors = {"scale": np.float32(1) / np.float32(given["scale"])} if "scale" in given else dict(given)
    settings, arrays = {**fields(fmt), **chosen}, {}
    if given:
        settings["given"] = given
    if chosen["rounding"] == "stochastic":
        place = {"key": KEY, "ordinal": ORDINAL, "lane": ROW_LANE, "step": STEP}
        settings["random"] = place
        arrays["random"] = factors["random"] = random_numbers(x.shape, fmt.element, **place)
    blocks = quantize_exact(x, fmt, **chosen, **factors)
    arrays |= {
        "codes": blocks.codes,
        "scale": blocks.scale,
        "values": dequantize_exact(blocks, fmt, axis=chosen["axis"]),
    }
    if blocks.tensor_scale is not None:
        arrays["tensor_scale"] = blocks.tensor_scale
    return settings, {f"{name}.{part}": value for part, value in arrays.items()}


def fields(fmt: QuantDType) -> dict[str, Any]:
    """The fields of a format as JSON writes them."""
    found = {field.name: getattr(fmt, field.name) for field in dataclasses.fields(fmt) if field.name != "name"}
    return {name: value.name if isinstance(value, Element) else value for name, value in found.items()}


def archive(xs: Arrays, cases: Sequence[Case]) -> Arrays:
    """The entries of one file of rows."""
    settings: dict[str, Any] = {}
    arrays = {f"input.{name}": x.view(np.uint16) if x.dtype == BF16 else x for name, x in xs.items()}
    for name, source, fmt, options in cases:
        assert name not in settings, name
        settings[name], parts = run(name, xs[source], fmt, options)
        settings[name]["input"] = f"input.{source}"
        arrays |= parts
    return {"about": np.array(ABOUT + ABOUT_ROWS), "cases": np.array(json.dumps(settings).encode()), **arrays}


def row(fmt: QuantDType) -> Arrays:
    """The file of one row of FORMATS."""
    xs = inputs(fmt)
    more = nvfp4_cases(fmt) if fmt.scale_family == "two_level" else ()
    return archive(xs, [*common_cases(fmt, list(xs)), *family_cases(fmt), *more])


def users() -> Arrays:
    """The file of formats made by users; their names are the first part of the case."""
    found = inputs(FORMATS["mxint8"])
    xs = {"finite": np.concatenate([found["finite"][::2], found["wide"][3:4]]), "nonfinite": found["nonfinite"][:3]}
    cases: list[Case] = []
    for fmt in user_formats():
        cases += [(f"{fmt}.{kind}", kind, fmt, {}) for kind in xs]
        cases.append((f"{fmt}.axis0", "finite", fmt, {"axis": 0}))
        cases.append((f"{fmt}.stochastic", "nonfinite", fmt, {"rounding": "stochastic"}))
    return archive(xs, cases)


def element_inputs(element: Element) -> Arrays:
    """Every value, tie and neighbour of both signs, beyond the largest, infinities, NaN and zeros."""
    values = np.abs(decode(np.arange(element.max_code + 1, dtype=np.uint8), element))
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, values[-1] * np.array([1.0625, 1.25, 1.5, 2.0])])
    points = np.concatenate([points, -points])
    near = points * (1 + np.ldexp(1.0, -40))
    with np.errstate(over="ignore", under="ignore"):
        x = points.astype(F32)
        beside = [np.nextafter(x, F32.type(way)) for way in (np.inf, -np.inf)]
        special = F32.type([0.0, -0.0, 1e-45, -1e-30, 3e38, -3e38, np.inf, -np.inf, np.nan])
    return {
        "float32": np.concatenate([x, *beside, special]),
        "float64": np.concatenate([near, points, [5e-324, 1e300]]),
    }


def element_casts() -> Arrays:
    """The file of casts."""
    arrays: Arrays = {"about": np.array(ABOUT + ABOUT_ELEMENTS)}
    place = {"key": KEY, "ordinal": ORDINAL, "lane": ROW_LANE, "step": STEP}
    for element in (e for e in ELEMENTS.values() if e.bits <= 8):
        name, found = element.name, element_inputs(element)
        arrays[f"{name}.decoded"] = decode(np.arange(1 << element.bits, dtype=np.uint8), element)
        for source, x in found.items():
            arrays[f"{name}.{source}"] = x
            for overflow in ("saturate", "nonsat"):
                for rounding in ("even", "toward_zero"):
                    codes = encode(x, element, overflow=overflow, rounding=rounding)  # type: ignore[arg-type]
                    arrays[f"{name}.{source}.{overflow}.{rounding}"] = codes
        if element.signed:
            arrays[f"{name}.random"] = r = random_numbers(found["float32"].shape, element, **place)
            for overflow in ("saturate", "nonsat"):
                codes = encode_random(found["float32"], element, r, overflow=overflow)  # type: ignore[arg-type]
                arrays[f"{name}.float32.{overflow}.stochastic"] = codes
    for element in (el.float4_e2m1fn, el.float8_e4m3fn):
        arrays[f"philox.uint{random_bits(element)}"] = random_numbers((64,), element, **place)
    return arrays


def files() -> dict[str, Arrays]:
    """Every file by name."""
    return {"elements": element_casts(), **{name: row(fmt) for name, fmt in FORMATS.items()}, "user_formats": users()}


def npz(arrays: Arrays) -> bytes:
    """An uncompressed ``.npz`` whose bytes depend on nothing but the arrays."""
    whole = BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as target:
        for name, array in arrays.items():
            entry, info = BytesIO(), zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            np.lib.format.write_array(entry, np.asarray(array, order="C"), (1, 0), allow_pickle=False)
            target.writestr(info, entry.getvalue())
    return whole.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the files go")
    out = parser.parse_args(argv).out
    out.mkdir(parents=True, exist_ok=True)
    for name, arrays in files().items():
        raw = npz(arrays)
        (out / f"{name}.npz").write_bytes(raw)
        print(f"{out / name}.npz: {len(arrays)} entries, {len(raw)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
