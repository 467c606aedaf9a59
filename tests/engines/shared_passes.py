"""Jobs of an engine that wait for the device together, and how much their images differ from those drawn alone."""

import asyncio
import contextlib
import io
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipelines.images.denoising.merging import ForwardMerger
from pipelines.images.denoising.step_observer import Pixels
from pipelines.images.engine import ImageEngine
from pipelines.images.scheduling.row_limits import RowLimits
from pipelines.images.scheduling.scheduler import DeviceTurn, ForwardRequest
from pipelines.protocol.images import Event, Finished, ImageJob
from tests.support.polling import eventually


async def last_event(engine: ImageEngine, job: ImageJob) -> Event:
    return [event async for event in engine.submit(job)][-1]


async def drawn(engine: ImageEngine, job: ImageJob) -> list[Pixels]:
    event = await last_event(engine, job)
    assert isinstance(event, Finished), event
    return [np.asarray(Image.open(io.BytesIO(image.data))) for image in event.images]


@contextlib.contextmanager
def device_held(engine: ImageEngine) -> Iterator[None]:
    """Nothing gets the engine's device meanwhile."""
    gate = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with engine._scheduler.acquire(DeviceTurn(0.0)):
            held.set()
            assert gate.wait(240)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(240)
        yield
    finally:
        gate.set()
        holder.join()


async def drawn_together(engine: ImageEngine, jobs: Sequence[ImageJob]) -> list[Event]:
    """All of them wait before the first one gets the device."""
    for spec in {job.checkpoint for job in jobs}:
        await engine.load(spec)
    with device_held(engine):
        tasks = [asyncio.create_task(last_event(engine, job)) for job in jobs]
        await eventually(lambda: len(engine._scheduler._waiting) == sum(job.n for job in jobs))
    return list(await asyncio.gather(*tasks))


def difference(event: Event, alone: list[Pixels]) -> int:
    """The largest difference of a pixel, of 255."""
    assert isinstance(event, Finished), event
    images = [np.asarray(Image.open(io.BytesIO(image.data))) for image in event.images]
    return max(int(np.abs(one.astype(int) - other).max()) for one, other in zip(images, alone, strict=True))


class Passes:
    """Counts forward passes by the images in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared: list[int] = []
        self.alone = 0
        in_one_pass, run_alone = ForwardMerger._in_one_pass, ForwardMerger._run_alone

        def count_shared(merger: ForwardMerger, requests: list[ForwardRequest]) -> list[Any]:
            self.shared.append(len(requests))
            return in_one_pass(merger, requests)

        def count_alone(merger: ForwardMerger, *arguments: Any) -> None:
            self.alone += 1
            run_alone(merger, *arguments)

        monkeypatch.setattr(ForwardMerger, "_in_one_pass", count_shared)
        monkeypatch.setattr(ForwardMerger, "_run_alone", count_alone)
        monkeypatch.setattr(RowLimits, "record", lambda *_: None)  # limits by size alone, whatever is measured here
