"""``python -m nvfp inspect DIR`` and ``python -m nvfp convert SRC DST --to DTYPE``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from nvfp.dtypes.dense import as_dtype
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import DTypeError, NvfpError, message
from nvfp.files.converting import KEEP, convert_model
from nvfp.files.dialects.entry import Entry
from nvfp.files.dialects.reading import DIALECTS
from nvfp.files.models import Checkpoint, chosen, open_checkpoint

COMMANDS = ("inspect", "convert")
_HEADS = ("tensor", "dialect", "dtype", "shape", "scales", "bytes")


def run(arguments: Sequence[str]) -> int:
    """Run a command on checkpoints.

    Args:
        arguments: one of `COMMANDS`, then its own arguments.

    Returns:
        The exit code: 0, or 1 with the error on stderr.

    Raises:
        SystemExit: the command line is wrong (code 2), or asked for help.
    """
    chosen_arguments = _parser().parse_args(arguments)
    try:
        lines: Iterable[str] = chosen_arguments.command(chosen_arguments)
        print("\n".join(lines))
    except (NvfpError, OSError) as error:
        print(f"nvfp {arguments[0]}: {error}", file=sys.stderr)
        return 1
    return 0


def describe(checkpoint: Checkpoint, *, include: Sequence[str] | None = None) -> list[str]:
    """Return the arrays of a checkpoint as a table: name, dialect, dtype, shape, scales, bytes; and totals.

    Args:
        checkpoint: from `open_checkpoint`.
        include: patterns of names; all by default.

    Example:
        >>> import os, tempfile, nvfp as nf
        >>> folder = os.path.join(tempfile.mkdtemp(), "model")
        >>> q = nf.ones((2, 32), device="cpu").astype(nf.mxfp4)
        >>> nf.files.save_model(folder, {"up.weight": q}, dialect="gpt-oss")
        >>> describe(nf.files.open_checkpoint(folder))[1].split()
        ['up.weight', 'gpt-oss:mxfp4', 'mxfp4', '2x32', 'U8[2,1]', '34']
    """
    entries = [checkpoint.entries[name] for name in chosen("inspect", checkpoint, include, None)]
    rows = [_HEADS, *(_row(checkpoint, entry) for entry in entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, "", *_totals(checkpoint, entries)]


def _row(checkpoint: Checkpoint, entry: Entry) -> tuple[str, ...]:
    kind = checkpoint.dialect if entry.kind in (checkpoint.dialect, "dense") else f"{checkpoint.dialect}:{entry.kind}"
    parts = [checkpoint.tensors[part] for role, part in entry.parts.items() if role in ("scale", "tensor_scale")]
    scales = " ".join(f"{t.dtype}[{','.join(map(str, t.shape))}]" for t in parts) or "-"
    shape = "x".join(map(str, entry.shape)) or "scalar"
    shown = "plain" if entry.kind == "dense" else kind
    return entry.name, shown, str(entry.dtype), shape, scales, str(entry.nbytes)


def _totals(checkpoint: Checkpoint, entries: Sequence[Entry]) -> list[str]:
    by_dtype: dict[str, list[int]] = {}
    for entry in entries:
        count = by_dtype.setdefault(str(entry.dtype), [0, 0, 0])
        size = 1
        for n in entry.shape:
            size *= n
        for i, value in enumerate((1, size, entry.nbytes)):
            count[i] += value
    lines = [
        f"{dtype}: {arrays} arrays, {values} values, {nbytes} bytes ({8 * nbytes / max(1, values):.2f} bits per value)"
        for dtype, (arrays, values, nbytes) in by_dtype.items()
    ]
    total = sum(entry.nbytes for entry in entries)
    ignored = f"; left in high precision: {', '.join(checkpoint.plan.ignore)}" if checkpoint.plan.ignore else ""
    method = f", quant_method {checkpoint.plan.method}" if checkpoint.plan.method else ""
    return [*lines, f"total: {len(entries)} arrays, {total} bytes, dialect {checkpoint.dialect}{method}{ignored}"]


def _inspect(arguments: argparse.Namespace) -> Iterable[str]:
    return describe(open_checkpoint(arguments.folder, device="cpu"), include=arguments.include)


def _convert(arguments: argparse.Namespace) -> Iterable[str]:
    dtype = as_dtype(arguments.to)
    if arguments.block is not None:
        if not isinstance(dtype, QuantDType):
            do = "name a quantized dtype, or leave --block out"
            raise DTypeError(message("convert", "a quantized dtype with --block", dtype, do))
        dtype = dtype.replace(block=arguments.block)
    convert_model(
        arguments.source, arguments.target, dtype, dialect=arguments.dialect, include=arguments.include,
        exclude=arguments.exclude, device=arguments.device, shard_size=arguments.shard_size,
        progress=not arguments.quiet,
    )  # fmt: skip
    made = open_checkpoint(arguments.target, device="cpu")
    quantized = sum(isinstance(entry.dtype, QuantDType) for entry in made.entries.values())
    return [f"{arguments.target}: {quantized} quantized arrays", *_totals(made, list(made.entries.values()))]


def _block(text: str) -> int | tuple[int, int]:
    """A length along rows, or lengths over both axes."""
    lengths = [int(part) for part in text.split("x")]
    if len(lengths) not in (1, 2) or min(lengths) < 1:
        raise ValueError(text)
    return lengths[0] if len(lengths) == 1 else (lengths[0], lengths[1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nvfp")
    commands = parser.add_subparsers(required=True)
    look = commands.add_parser("inspect", help="list the tensors of a model's folder or file")
    look.add_argument("folder")
    look.add_argument("--include", nargs="+", metavar="PATTERN", help="only these names, e.g. '*layers.0.*'")
    look.set_defaults(command=_inspect)
    make = commands.add_parser("convert", help="write a model's folder in another dtype and dialect")
    make.add_argument("source")
    make.add_argument("target", help="a folder that does not exist yet")
    make.add_argument("--to", required=True, metavar="DTYPE", help="nvfp4, mxfp8, fp8_e4m3, ... or bfloat16")
    make.add_argument("--block", type=_block, metavar="N|RxC", help="another block, e.g. 128x128 for dialect deepseek")
    make.add_argument("--dialect", choices=sorted(DIALECTS), help="whose spelling; default: one that has the dtype")
    make.add_argument("--include", nargs="+", metavar="PATTERN", help="names to convert; default: matrices")
    make.add_argument("--exclude", nargs="+", metavar="PATTERN", help=f"names to leave; default: {' '.join(KEEP)}")
    make.add_argument("--device", help="where it is computed, e.g. cpu or cuda")
    make.add_argument("--shard-size", default="5GB", help="most bytes of one file (default 5GB)")
    make.add_argument("--quiet", action="store_true", help="no progress bar")
    make.set_defaults(command=_convert)
    return parser
