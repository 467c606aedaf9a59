"""(e) The time of a swap against the time of reading its files.

The starters are so small that a swap of them is all Python. So the checkpoint here is a UNet of a few hundred megabytes
with random weights, in the dtype that the device computes in. Its files are dropped from the page cache before both.
The first swap of a checkpoint tries what its first call needs, and the rest while it serves; later ones draw one image.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.bare import DEVICE, timed
from server.catalog.images import ImageModel
from tests.support.harness import Server

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


@dataclass(frozen=True, slots=True)
class SwapTimes:
    """Seconds of reading the files before each swap, the first swap, until all of it was tried, and later swaps.
    `megabytes` are of the files."""

    read_s: list[float]
    first_s: float
    tried_s: float
    again_s: list[float]
    megabytes: float


def swap_times(server: Server, model: ImageModel, folder: Path) -> SwapTimes:
    """The server has the model's own checkpoint afterwards."""
    files = sorted(folder.rglob("*.safetensors"))
    reads, swaps, tried_s = [], [], 0.0
    for number in range(1 + ROUNDS):
        _drop_from_page_cache(files)
        reads.append(timed(lambda: [file.read_bytes() for file in files]))
        _drop_from_page_cache(files)
        swaps.append(timed(lambda: _swap(server, model.name, folder)))
        if number == 0:  # else nothing would be on record for the later ones
            tried_s = swaps[0] + timed(server.wait_ready)
        _swap(server, model.name, model.checkpoint.path)
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    return SwapTimes(reads, swaps[0], tried_s, swaps[1:], megabytes)


def _drop_from_page_cache(files: list[Path]) -> None:
    """Drop them from the page cache."""
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _swap(server: Server, model: str, checkpoint: Path) -> None:
    """By HTTP: the command takes a second to start."""
    with server.http(server.admin_key) as client:
        answer = client.post("/admin/swap", json={"model": model, "checkpoint": str(checkpoint)})
        answer.raise_for_status()
