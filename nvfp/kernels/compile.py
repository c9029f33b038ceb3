"""``python -m nvfp.kernels.compile``: fill the cache of CUDA kernels ahead, without a GPU, and report on them."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from nvfp.errors import KernelError, MissingDependencyError, NvfpError
from nvfp.kernels.cuda import _loader
from nvfp.kernels.cuda._loader import ARCHITECTURES, Instance
from nvfp.kernels.cuda.instances import IN_FULL, declared, instances, one_per_source
from nvfp.optional import has, need

_FUNCTION = re.compile(
    r"Function properties for (\w+)\n.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
    r".*?Used (\d+) registers"
)


@dataclass(frozen=True)
class Usage:
    """What ptxas says of one kernel, in registers per thread and bytes per thread."""

    registers: int
    stack: int
    spills: int


def usage(instance: Instance, arch: str) -> Usage:
    """Compile ``instance`` for ``arch`` anew, into the cache, and return what it uses.

    Raises:
        KernelError: it does not compile, or ptxas reports nothing.
    """
    code, log = _loader.compile_cubin(instance, arch, ("--ptxas-options=-v",))
    _loader.keep(instance, arch, code)  # the option adds to the log only
    for name, stack, stores, loads, registers in _FUNCTION.findall(log):
        if name == instance.name:
            return Usage(int(registers), int(stack), int(stores) + int(loads))
    raise KernelError(f'[compile] expected a report on {instance.name}, got {log!r}; name an extern "C" kernel')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code (1: a kernel does not compile or spills, 2: wrong usage)."""
    options = _parse(arguments)
    chosen = instances(options.stem)
    if options.one_per_source:
        chosen = one_per_source(chosen)
    if options.list:
        print("\n".join(map(str, chosen)))
        return 0
    try:
        archs = options.arch or (ARCHITECTURES if options.all else [_present_architecture()])
        jobs = [(i, a) for a in archs for i in chosen] if options.arch or not options.all else declared(chosen)
        version = ".".join(map(str, _loader.nvrtc_version()))
        print(f"{len(jobs)} kernels for {', '.join(archs)} with NVRTC {version}")
        failed = _compile(jobs, report=options.report or options.fail_on_spills)
    except MissingDependencyError as error:
        print(error, file=sys.stderr)
        return 2
    for line in failed:
        print(line, file=sys.stderr)
    spilled = [line for line in failed if line.startswith("spills")]
    return 1 if len(failed) > len(spilled) or (spilled and options.fail_on_spills) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m nvfp.kernels.compile", description=(__doc__ or "").replace("``", "")
    )
    parser.add_argument("--arch", nargs="+", metavar="SM", help="NVRTC targets, e.g. sm_90a (default: the GPU here)")
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"every kernel for {IN_FULL}, a selection for the other targets",
    )
    parser.add_argument("--stem", help="only the kernels of one stem, e.g. quantize")
    parser.add_argument("--one-per-source", action="store_true", help="one kernel of each source file")
    parser.add_argument("--report", action="store_true", help="print registers, stack and spills of each kernel")
    parser.add_argument("--fail-on-spills", action="store_true", help="exit with 1 if a kernel spills registers")
    parser.add_argument("--list", action="store_true", help="print what would be compiled")
    return parser.parse_args(arguments)


def _present_architecture() -> str:
    """The target of the current GPU; sm_90a where there is none."""
    if has("cupy"):
        runtime = need("cupy", extra="cuda13").cuda.runtime
        try:
            return _loader.device_architecture(runtime.getDevice())
        except runtime.CUDARuntimeError:
            pass
    return "sm_90a"


def _compile(jobs: list[tuple[Instance, str]], *, report: bool) -> list[str]:
    """Compile every job into the cache, on all cores; return a line for each that fails or spills."""
    lines = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = [pool.submit(_one, *job, report=report) for job in jobs]
        for (instance, arch), result in zip(_progress(jobs), results):
            try:
                used = result.result()
            except NvfpError as error:
                lines.append(f"failed {arch} {instance}\n{error}")
                continue
            if used is None:
                continue
            print(f"{arch:8} {used.registers:3} registers {used.stack:3} B stack {used.spills:3} B spilled  {instance}")
            if used.spills:
                lines.append(f"spills {arch} {instance}: {used.spills} bytes")
    return lines


def _one(instance: Instance, arch: str, *, report: bool) -> Usage | None:
    """Compile one kernel; what it uses, if a report is asked for."""
    if report:
        return usage(instance, arch)
    _loader.cubin(instance, arch)
    return None


def _progress(jobs: list[tuple[Instance, str]]) -> Iterable[tuple[Instance, str]]:
    if has("tqdm"):
        return need("tqdm", extra="plot").tqdm(jobs, unit="kernel", disable=None)  # type: ignore[no-any-return]
    return _plain_progress(jobs)


def _plain_progress(jobs: list[tuple[Instance, str]]) -> Iterable[tuple[Instance, str]]:
    for number, job in enumerate(jobs, 1):
        print(f"[{number}/{len(jobs)}] {job[1]} {job[0].source}:{job[0].name}")
        yield job


if __name__ == "__main__":
    sys.exit(main())
