"""Make the safetensors files of ``tests/data`` out of the full reference files.

    python scripts/extract_te_data.py FOLDER [--out tests/data]

FOLDER holds ``quantizers.safetensors``, ``blocks.safetensors``, ``optim.safetensors`` and ``modules.safetensors`` (see
``tests/data/README.md`` for their origin). Tensors are copied byte for byte; only the keys that tests use are kept. A
tensor that a file of `MERGED` would hold twice is written once: the metadata entry ``same`` names the others.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Output file -> (source file, pattern of the keys to keep).
_MX = r"mxfp[468](_e\dm\d)?"
SUBSETS: dict[str, tuple[str, str]] = {
    "te_quantizers.safetensors": ("quantizers.safetensors", r"(current|current_pow2|delayed37\.5)\..*"),
    "te_blocks128.safetensors": ("quantizers.safetensors", r"block[12]d\..*"),
    "te_linear.safetensors": ("modules.safetensors", r"linear\.(block|current)\..*"),
    "blocks_mx.safetensors": (
        "blocks.safetensors",
        rf"input\.f32\.mx\..*|cuda_headers\.({_MX})\.ceil\..*|torchao\.({_MX})\.(floor|ceil|even)\..*"
        r"|(gfloat|microxcaling)\.mxint8\.floor\..*",
    ),
    "blocks_nvfp4.safetensors": ("blocks.safetensors", r"input\.f32\.nvfp4\..*|te_ref\.nvfp4\.(1d|2d)\..*"),
    "blocks_nvfp4_variants.safetensors": (
        "blocks.safetensors",
        r"input\.bf16\.nvfp4\..*|te_ref\.nvfp4\.(rht|row_scaled|4over6).*",
    ),
    "blocks_checkpoints.safetensors": (
        "blocks.safetensors",
        r"input\.f32\.nvfp4\.normal-(64x128|48x80)\..*|(modelopt|compressed_tensors)\.nvfp4\.weight\..*",
    ),
    "te_optim.safetensors": ("optim.safetensors", r"(adamw|adam_l2|ce)\..*"),
    "te_norm.safetensors": ("modules.safetensors", r"rmsnorm_zc\.fp32/.*"),
    # the gradients of layer.padding are not comparable: see tests/data/README.md
    "te_modules.safetensors": (
        "modules.safetensors",
        r"(layer\.(?!padding)|layernorm_linear\.|layernorm_mlp\.).*|layer\.padding\.fp32/(state|in|arg|out).*",
    ),
}
MERGED = {"te_blocks128.safetensors", "blocks_nvfp4_variants.safetensors", "te_modules.safetensors"}
# Notes on single cases stay; notes on groups that are left out go.
_NOTES = re.compile(r"(origin|keys|layout|data\..*|cuda_headers|torchao|te_ref\.nvfp4(\.1d|\.2d)?)")


def read(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the header and the data of a safetensors file."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def extract(source: Path, pattern: str, target: Path) -> int:
    """Write the tensors of ``source`` whose key matches ``pattern`` fully to ``target``; return how many."""
    header, data = read(source)
    notes = header.pop("__metadata__", {})
    wanted = {key: header[key] for key in sorted(header) if re.fullmatch(pattern, key)}
    kept: dict[str, Any] = {"__metadata__": {k: v for k, v in sorted(notes.items()) if _keep_note(k, wanted)}}
    body = bytearray()
    first: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for key, entry in wanted.items():
        start, stop = entry["data_offsets"]
        if target.name in MERGED:
            known = first.setdefault((entry["dtype"], *entry["shape"], data[start:stop]), key)
            if known != key:
                same[key] = known
                continue
        kept[key] = {**entry, "data_offsets": [len(body), len(body) + stop - start]}
        body += data[start:stop]
    if same:
        kept["__metadata__"]["same"] = json.dumps(same, separators=(",", ":"))
    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(len(text).to_bytes(8, "little") + text + bytes(body))
    return len(wanted)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the full files lie")
    parser.add_argument("--out", type=Path, default=Path("tests/data"), help="where the subsets go")
    arguments = parser.parse_args(argv)
    for name, (source, pattern) in SUBSETS.items():
        target = arguments.out / name
        count = extract(arguments.folder / source, pattern, target)
        print(f"{target}: {count} tensors, {target.stat().st_size} bytes")


def _keep_note(key: str, wanted: dict[str, Any]) -> bool:
    return bool(_NOTES.fullmatch(key)) or any(tensor.startswith(f"{key}.") for tensor in wanted)


if __name__ == "__main__":
    main()
