"""`make gpu`: `python -m benchmarks.gpu [PART ...] [--tiny]`. Without a part, all of them, one after another."""

import argparse
import asyncio
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

try:
    from pipelines.device.offline import quiet_libraries

    quiet_libraries()

    import torch

    from benchmarks.gpu import ceilings, options, pictures, several, swap
    from benchmarks.gpu.machine import Machine
    from benchmarks.gpu.report import PART_S, Report
except ModuleNotFoundError as missing:
    package = str(missing.name).partition(".")[0]
    raise SystemExit(f"The GPU benchmark needs {package}, which is not installed: pip install -e .") from None

PARTS: dict[str, Callable[[Machine, Report], Awaitable[None]]] = {
    "ceilings": ceilings.ceilings,
    "steps": ceilings.steps,
    "pictures": pictures.pictures,
    "merged": pictures.merged,
    "large": pictures.large,
    "attention": options.attention,
    "caches": options.caches,
    "fp8": options.fp8,
    "compiled": options.compiled,
    "loading": swap.loading,
    "several": several.several,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The number of parts that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--tiny", action="store_true", help="small networks, on a CPU too: shows that the parts run")
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available() and not chosen.tiny:
        parser.error("there is no GPU here; --tiny runs on a CPU")
    machine = Machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"), chosen.tiny)
    failed = 0
    for name in chosen.part or PARTS:
        report = Report(name)
        try:
            asyncio.run(PARTS[name](machine, report))
        except Exception as error:  # the other parts are still worth their time
            traceback.print_exc()
            report.add("failed", f"{type(error).__name__}: {error}"[:400])
            failed += 1
        report.add("the whole part", time.perf_counter() - report.began, "s", goal=f"{PART_S} s")
        report.show()
        machine.free()
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
