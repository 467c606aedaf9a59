"""One image on two GPUs."""

from typing import Any, Final

import torch

from benchmarks.gpu.engine import Pixels, difference, serving
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.networks import flux_pipeline
from benchmarks.gpu.report import Report
from pipelines.images.parallel.group import Group

WAYS: Final = {"context": "2.5 s on two H200", "tensor": ""}


async def several(machine: Machine, report: Report) -> None:
    """FLUX.1 by context and by tensor parallelism, against one GPU. With `--tiny` on two processes of the CPU."""
    if machine.is_gpu and torch.cuda.device_count() < 2:
        report.add("several", "none", why="there is one GPU here")
        return
    alone, alone_s = await _draw(machine)
    machine.free()
    report.add("one", alone_s, "s")
    threads = torch.get_num_threads()
    if not machine.is_gpu:
        torch.set_num_threads(max(1, threads // 2))  # of each of two processes
    try:
        for way, goal in WAYS.items():
            await _together(machine, report, way, goal, image=alone, one_s=alone_s)
    finally:
        torch.set_num_threads(threads)


async def _together(machine: Machine, report: Report, way: str, goal: str, image: Pixels, one_s: float) -> None:
    """`image` is what one GPU drew, in `one_s`."""
    machine.reset_peak()
    group = Group(machine.device, 2)
    try:
        drawn, taken = await _draw(machine, group, gpus=2, parallel=way)
    finally:
        group.close()
        machine.free()
    facts: dict[str, Any] = {"gain": one_s / taken, "peak_gib": machine.peak_gib}
    report.add(f"two, {way}", taken, "s", goal=goal, **facts, **difference(drawn, image))


async def _draw(machine: Machine, group: Group | None = None, **runtime: object) -> tuple[Pixels, float]:
    """An image and its seconds."""
    with serving(machine, flux_pipeline(machine), group, **runtime) as bench:
        (drawn,) = await bench.draw(bench.job())
        return drawn, await bench.timed(bench.job())
