"""Run every benchmark, one stem after the other, and print a row for each case.

The table of stems (nvfp/kernels/stems.py) names the files. A benchmark that fails is reported and the rest still run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path

from _harness import finish, parser, start
from _row import limits_text

from nvfp.kernels.stems import STEMS

BENCHMARKS = {name: Path(stem.benchmark).stem for name, stem in STEMS.items() if isinstance(stem.benchmark, str)}
BENCHMARKS |= {
    name: f"bench_{name}" for name in ("linear", "linear_cross_entropy", "transformer", "train")
}  # of several stems


def _stems(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(BENCHMARKS)}")
    return names


def run() -> int:
    options = parser(__doc__)
    options.add_argument("--only", type=_stems, default=list(BENCHMARKS), metavar="STEM,...", help="these stems only")
    args = options.parse_args()
    bench, failed, began = start(args), [], time.monotonic()
    for i, stem in enumerate(args.only, 1):
        print(f"\n[{i}/{len(args.only)}] {stem} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
        try:
            importlib.import_module(BENCHMARKS[stem]).bench(bench)
        except Exception:
            traceback.print_exc()
            failed.append(stem)
        bench.release()
        finish(bench, args.json)  # after each stem, so that a run that is cut off leaves its figures
    print(limits_text(bench.rows))
    print(f"\n{len(bench.rows)} rows in {time.monotonic() - began:.0f} s", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(run())
