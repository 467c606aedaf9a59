"""A checkpoint of FLUX.1's size from the disk: alone, and beside images that are drawn meanwhile."""

import asyncio
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.engine import WEIGHTS_SHARE, serving, spec_of
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.networks import flux_pipeline
from benchmarks.gpu.report import Report

READ_BYTES = 2**24


async def loading(machine: Machine, report: Report) -> None:
    """It writes the checkpoint to a temporary folder first: 34 GB."""
    pipeline = flux_pipeline(machine)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "other"
        needed = sum(
            weight.nbytes
            for part in pipeline.components.values()
            if hasattr(part, "parameters")
            for weight in part.parameters()
        )
        if shutil.disk_usage(name).free < 1.2 * needed:
            report.add("loading", "none", why=f"{needed / 1e9:.0f} GB do not fit into {name}")
            return
        if machine.is_gpu and 2 * needed > WEIGHTS_SHARE * machine.memory_gib * 2**30:
            report.add("loading", "none", why=f"two checkpoints of {needed / 1e9:.0f} GB do not fit into the device")
            return
        pipeline.save_pretrained(folder)
        began = time.perf_counter()
        size = sum(map(_read, folder.rglob("*.safetensors")))
        report.add("reading the files", time.perf_counter() - began, "s", gigabytes=size / 1e9)
        with serving(machine, pipeline) as bench:
            image_s = await bench.timed(bench.job())
            other = spec_of(machine, folder)
            began = time.perf_counter()
            await bench.engine.load(other)
            alone_s = time.perf_counter() - began
            report.add("loading alone", alone_s, "s", gigabytes_a_second=size / 1e9 / alone_s)
            bench.engine.unload_except([bench.spec])
            again = replace(other, version=1)
            loading = asyncio.create_task(bench.engine.load(again))
            began = time.perf_counter()
            taken = []
            while not loading.done():
                started = time.perf_counter()
                await bench.draw(bench.job(prompt=f"boat {len(taken)}"))
                taken.append(time.perf_counter() - started)
            await loading
            facts = {"over_alone": (time.perf_counter() - began) / alone_s, "pictures": len(taken)}
            report.add("loading beside images", time.perf_counter() - began, "s", goal="alone x 2", **facts)
            slowed = statistics.median(taken) / image_s if taken else 1.0
            report.add("images beside loading, over alone", slowed, goal="1.2")


def _read(file: Path) -> int:
    """Its bytes, once into memory: the disk's own time, or the page cache's."""
    with file.open("rb", buffering=0) as stream:
        while stream.read(READ_BYTES):
            pass
    return file.stat().st_size
