"""One picture on two GPUs."""

from typing import Any, Final

import torch

from benchmarks.gpu.engine import difference, serving
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
    with serving(machine, flux_pipeline(machine)) as bench:
        (alone,) = await bench.draw(bench.job())
        alone_s = await bench.timed(bench.job())
    report.add("one", alone_s, "s")
    machine.free()
    if not machine.is_gpu:
        torch.set_num_threads(max(1, torch.get_num_threads() // 2))  # two processes have the cores
    for way, goal in WAYS.items():
        machine.reset_peak()
        group = Group(machine.device, 2)
        try:
            with serving(machine, flux_pipeline(machine), group, gpus=2, parallel=way) as bench:
                (picture,) = await bench.draw(bench.job())
                taken = await bench.timed(bench.job())
            facts: dict[str, Any] = {"gain": alone_s / taken, "peak_gib": machine.peak_gib}
            report.add(f"two, {way}", taken, "s", goal=goal, **facts, **difference(picture, alone))
        finally:
            group.close()
            machine.free()
