"""An image is enlarged by the second pass alone: close to what it is, at any size, also one off the grid."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipelines.checkpoints.work.estimate import image_steps, work_units
from pipelines.checkpoints.work.plan import plan_job
from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import Finished, ImageJob, Progress, RawImage
from tests.engines.device import DEVICE


def photo(width: int, height: int) -> RawImage:
    """Large shapes, which a redrawing of little strength keeps."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    pixels = np.stack([across, down, 255 - across], axis=2).astype(np.uint8)
    return RawImage(width, height, "RGB", pixels.tobytes())


@pytest.mark.daily("sd-size0")
@pytest.mark.parametrize(("name", "size"), [("sd", (150, 100)), ("klein", (150, 100)), ("sd", (48, 48))])
async def test_an_image_is_redrawn_in_tiles_at_exactly_its_size(
    job: Callable[..., ImageJob], name: str, size: tuple[int, int]
) -> None:
    engine = ImageEngine(DEVICE)
    small = photo(size[0] // 2, size[1] // 2)
    enlarged: Any = job(name, width_px=size[0], height_px=size[1], references=(small,), enlarges=True)
    events = [event async for event in engine.submit(enlarged)]
    finished = events[-1]
    assert isinstance(finished, Finished), finished
    image = Image.open(io.BytesIO(finished.images[0].data))
    assert image.size == size
    plan = plan_job(enlarged, (await engine.load(enlarged.checkpoint)).multiple_px)
    assert len(plan.tiles) == (1 if max(size) < 64 else 6)
    assert [event for event in events if isinstance(event, Progress)][-1].steps == image_steps(enlarged, plan)
    other = replace(enlarged, references=(photo(size[0] // 2, size[1] // 2 + 30),), seed=enlarged.seed)
    assert finished.images[0].data != [event async for event in engine.submit(other)][-1].images[0].data  # type: ignore[union-attr]
    engine.close()


def test_its_work_is_that_of_its_tiles(job: Callable[..., ImageJob]) -> None:
    drawn: Any = job("sd", width_px=150, height_px=100, references=(photo(75, 50),))
    assert 0 < work_units(replace(drawn, enlarges=True)) < work_units(drawn)
