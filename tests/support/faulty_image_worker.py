"""An image worker on the CPU that pretends to have a GPU, which fails: `python -m tests.support.faulty_image_worker`.

A prompt injects the error where a kernel would raise it; the seam below is what asks the device. The files in the
folder FAULTY_GPU say what becomes of the GPU. The processes of a group are missed sooner than others are.
"""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipelines import worker
from pipelines.device import choice, failures
from pipelines.protocol.engine import NoDevice
from pipelines.protocol.messages import DeviceChoice, Ready

if TYPE_CHECKING:
    from pipelines.images.denoising.step_observer import Pixels

STICKY = "CUDA error: an illegal memory access was encountered"
SLOW, LOST = "slow", "lost"  # files: the driver takes its time; there is no GPU any more

_is_lost = False
_create = worker._create_engine


def _fail_on_purpose() -> None:
    from pipelines.images.drawing.pipeline import ImagePipeline

    draw = ImagePipeline.draw

    def drawing(self: ImagePipeline) -> Callable[[], "Pixels"]:
        global _is_lost
        if self.job.prompt == STICKY:
            _is_lost = True
        if _is_lost:
            raise torch.AcceleratorError(STICKY)
        return draw(self)

    ImagePipeline.draw = drawing  # type: ignore[method-assign]


def _wait_less() -> None:
    from pipelines.images.parallel import group, process_group

    process_group.LIMIT = timedelta(seconds=15)  # type: ignore[misc]
    group.AGREE_S = 1.0  # type: ignore[misc]


def _choose_device(wanted: DeviceChoice) -> torch.device:
    folder = Path(os.environ["FAULTY_GPU"])
    while (folder / SLOW).exists():
        time.sleep(0.05)
    if (folder / LOST).exists() and wanted == "cuda":
        raise NoDevice("no GPU can be used: it has fallen off the bus")
    return torch.device("cpu")


def _create_engine(*arguments: Any) -> worker.AnyEngine:
    """What it patches is imported where a worker without a GPU does not come to."""
    _wait_less()
    if "FAULTY_GPU" in os.environ:
        _fail_on_purpose()
    return _create(*arguments)


def main() -> None:
    """Without FAULTY_GPU there is no GPU, not even a pretended one."""
    worker._create_engine = _create_engine
    if "FAULTY_GPU" in os.environ:
        failures.is_responsive = lambda device: not _is_lost
        choice.choose_device = _choose_device
        worker.Ready = lambda device, is_gpu, problems: Ready(device, is_gpu=True)  # type: ignore[misc,assignment]
    worker.main()


if __name__ == "__main__":
    main()
