"""(e) The time of a swap against the time of reading its files.

The starters are so small that a swap of them is all Python. So the checkpoint here is a UNet of a few hundred megabytes
with random weights, in the dtype that the device computes in. Its files are dropped from the page cache before both.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.bare import DEVICE, timed
from pipelines.catalog.images import ImageModel
from tests.support.harness import REPOSITORY, Server

ROUNDS = 3
CHANNELS = (320, 640, 1280, 1280)


@contextmanager
def large_checkpoint(model: ImageModel) -> Iterator[Path]:
    """The model's pipeline with a UNet of Stable Diffusion's width, for as long as it is needed."""
    from diffusers import UNet2DConditionModel

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "large"
        shutil.copytree(model.checkpoint.path, folder)
        config = dict(UNet2DConditionModel.load_config(folder / "unet"))
        blocks = len(config["down_block_types"])
        wide = {**config, "block_out_channels": CHANNELS[:blocks]}
        torch.manual_seed(0)
        dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
        UNet2DConditionModel.from_config(wide).to(dtype).save_pretrained(folder / "unet")
        yield folder


def swap_times(server: Server, model: ImageModel, folder: Path) -> tuple[float, float, float]:
    """Median seconds to read the files, and to swap them in, and their megabytes."""
    files = sorted(folder.rglob("*.safetensors"))
    reads, swaps = [], []
    for _ in range(ROUNDS):
        _drop_from_page_cache(files)
        reads.append(timed(lambda: [file.read_bytes() for file in files]))
        _drop_from_page_cache(files)
        swaps.append(timed(lambda: _darkroom(server, "swap", model.name, str(folder))))
        _darkroom(server, "swap", model.name, str(model.checkpoint.path))
    return statistics.median(reads), statistics.median(swaps), sum(file.stat().st_size for file in files) / 1e6


def _drop_from_page_cache(files: list[Path]) -> None:
    """Drop them from the page cache."""
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _darkroom(server: Server, *arguments: str) -> None:
    command = [sys.executable, "-m", "server", *arguments]
    subprocess.run(command, env=server.environment, cwd=REPOSITORY, check=True, capture_output=True)
