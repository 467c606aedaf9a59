"""`make gpu`: `python -m benchmarks.gpu [PART ...] [--tiny]`. Without a part, all of them, one after another, on a GPU
each in a process of its own."""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence

from pipelines.worker import set_environment

set_environment(None)  # as a worker's

try:
    from pipelines.device.offline import quiet_libraries

    quiet_libraries()

    import torch

    from benchmarks.gpu import ceilings, decoding, default, hidden_costs, images, options, several, swap
    from benchmarks.gpu.machine import Machine
    from benchmarks.gpu.report import PART_S, Report
except ModuleNotFoundError as missing:
    package = str(missing.name).partition(".")[0]
    raise SystemExit(f"The GPU benchmark needs {package}, which is not installed: pip install -e .") from None

PARTS: dict[str, Callable[[Machine, Report], Awaitable[None]]] = {
    "default": default.default,
    "chats": hidden_costs.chats,
    "decoding": decoding.decoding,
    "waits": hidden_costs.waits,
    "ceilings": ceilings.ceilings,
    "steps": ceilings.steps,
    "pictures": images.images,
    "merged": images.merged,
    "crowd": images.crowd,
    "large": images.large,
    "attention": options.attention,
    "caches": options.caches,
    "fp8": options.fp8,
    "compiled": options.compiled,
    "offload": options.offload,
    "graphs": hidden_costs.graphs,
    "loading": swap.loading,
    "several": several.several,
}


REPORTED = 1  # the exit status of a part that has failed, and said so


def main(arguments: Sequence[str] | None = None) -> int:
    """The number of parts that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--tiny", action="store_true", help="small networks, on a CPU too: shows that the parts run")
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available() and not chosen.tiny:
        parser.error("there is no GPU here; --tiny runs on a CPU")
    names = chosen.part or list(PARTS)
    if not chosen.tiny and len(names) > 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the part too
        return run_apart(names, 2 * PART_S)
    machine = Machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"), chosen.tiny)
    failed = 0
    for name in names:
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


def run_apart(names: Sequence[str], limit_s: float) -> int:
    """Each part in a process of its own: after an error that sticks to the device no other could go on, and what hangs
    is killed. Returns the number of parts that failed."""
    failed = 0
    for name in names:
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.gpu", name], start_new_session=True)
        why = None
        try:
            if (code := process.wait(limit_s)) not in {0, REPORTED}:
                why = f"it ended with {code}"
            failed += code == REPORTED
        except subprocess.TimeoutExpired:
            why = f"it was killed after {limit_s:g} s"
        finally:  # also where this process is interrupted
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started too
            process.wait()
        if why is not None:
            Report(name).add("failed", why)
            failed += 1
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
