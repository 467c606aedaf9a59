"""Peak memory of 1K, 2K and 4K images, each in a fresh process, over what the loaded checkpoint takes. With `--real`,
that of published checkpoints on real cards, computed on fake tensors: it needs no GPU and little memory.

A 4K image has eight times the pixels of a 1K image. The last column does not grow with them, because a large
image is redrawn in tiles of native size.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from server.backends.engine_layout import heap_on_cpu

SIZES = {"1K": (1024, 1024), "2K": (2736, 1536), "4K": (3840, 2160)}
MODELS = {"alpha": "alpha-image-2-count", "beta": "beta-3-pro-image-count"}


def main() -> None:
    """All measurements, or one if the arguments name a family and a tier: in a process of its own."""
    if sys.argv[1:] == ["--real"]:
        real()
        return
    if len(sys.argv) > 1:
        asyncio.run(draw(*sys.argv[1:3]))
        return
    table = Table("Family", "Tier", "Pixels", "Loaded", "Peak", "For the image", title="Peak memory, MiB")
    for family in MODELS:
        for tier, (width, height) in SIZES.items():
            command = [sys.executable, "-m", "benchmarks.memory", family, tier]
            environment = {**os.environ, **heap_on_cpu()}  # a worker's
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            loaded, peak = json.loads(done.stdout.splitlines()[-1])
            table.add_row(family, tier, f"{width}x{height}", f"{loaded:.0f}", f"{peak:.0f}", f"{peak - loaded:.0f}")
    Console().print(table)


def real() -> None:
    """Print what published checkpoints take on real cards."""
    from pipelines.device.offline import quiet_libraries

    quiet_libraries()
    from benchmarks.real_memory.cards import tables

    for table in tables():
        Console(width=220).print(table)


async def draw(family: str, tier: str) -> None:
    """Draw one image and print MiB: after loading the checkpoint, and at the peak."""
    from pipelines.device.offline import quiet_libraries

    quiet_libraries()
    import torch

    from benchmarks.jobs import bench_job
    from pipelines.device.heap import share_one_arena
    from pipelines.images.engine import ImageEngine
    from pipelines.protocol.images import Finished
    from server.catalog.images import load_catalog
    from server.settings import Settings

    share_one_arena()
    engine, settings = ImageEngine(torch.device("cpu")), Settings()
    model = load_catalog(settings.model_configs, settings.weights).models[MODELS[family]]
    job = bench_job(model, *SIZES[tier], steps=4)
    await engine.load(job.checkpoint)
    loaded = peak_mib()
    events = [event async for event in engine.submit(job)]
    if not isinstance(events[-1], Finished):
        raise SystemExit(f"the engine failed: {events[-1]}")
    print(json.dumps([loaded, peak_mib()]))


def peak_mib() -> float:
    """The process's largest resident size so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
