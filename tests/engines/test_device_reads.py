"""Between two steps, Darkroom reads nothing from the device: a read makes the host wait until the GPU has caught up.

An image that is drawn is finished after its turn, while the device serves others, and adapters are read before it.
"""

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pipelines.checkpoints.work.estimate import work_units
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.denoising.step_observer import PreviewFn
from pipelines.images.drawing.pipeline import GeneratedImage, ImagePipeline
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.images.scheduling.scheduler import Synchronous
from pipelines.protocol.images import CheckpointSpec, Failed, Finished, ImageJob, Runtime
from tests.engines.device import DEVICE

Job = Callable[..., ImageJob]
# What a GPU can't do without the host waiting: reading a number, and shapes that depend on values.
READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal", "aten::masked_select"}


class Reads(TorchDispatchMode):
    """Counts the operations that read a value."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := func._schema.name) in READS:
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Counts the calls that copy a tensor to the host: on a CPU they do nothing, so that no operation is dispatched."""

    METHODS = ("cpu", "numpy", "tolist", "item", "__array__")

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        to_host = name == "to" and any(str(value) == "cpu" for value in (*args[1:], *(kwargs or {}).values()))
        if to_host or name in self.METHODS:
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def loaded(spec: Callable[[str], CheckpointSpec]) -> Callable[[str], Checkpoint]:
    made: dict[str, Checkpoint] = {}
    return lambda name: made.setdefault(name, load_checkpoint(spec(name), DEVICE))


def reads_of_a_call(checkpoint: Checkpoint, job: ImageJob, *, preview: bool = False) -> Counter[str]:
    """What an image reads, with a preview after each step or none."""
    checkpoint.prompts.clear()  # each call encodes its prompt
    reads, copies = Reads(), Copies()
    maps = PreviewMap()
    maps.update(torch.rand(4, 8, 8), torch.randint(0, 255, (64, 64, 3), dtype=torch.uint8).numpy())

    def on_step(show: PreviewFn) -> None:
        if preview:
            show()

    pipeline = ImagePipeline(checkpoint, Row(job, 0, 0.0), on_step, maps)
    with reads, copies:
        pipeline.draw()
    return reads.names + copies.names


def bare_reads(checkpoint: Checkpoint, job: ImageJob) -> Counter[str]:
    """What the library's own call reads, without a callback."""
    reads, copies = Reads(), Copies()
    with reads, copies, torch.inference_mode():
        checkpoint.pipeline()(
            prompt=job.prompt, width=64, height=64, num_inference_steps=job.sampling.steps, output_type="pt",
            guidance_scale=job.sampling.guidance, generator=torch.Generator("cpu").manual_seed(5),
        )  # fmt: skip
    return reads.names + copies.names


@pytest.mark.parametrize("name", ["sd", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("sd3", "klein"))])
def test_a_step_without_a_preview_reads_no_more_than_the_library_does(
    name: str, loaded: Callable[[str], Checkpoint], job: Job
) -> None:
    short, long = job(name, steps=6), job(name, steps=12)
    reads_of_a_call(loaded(name), short)  # the prompt is kept from here on
    ours = reads_of_a_call(loaded(name), long) - reads_of_a_call(loaded(name), short)
    assert ours == bare_reads(loaded(name), long) - bare_reads(loaded(name), short)


def test_a_preview_is_seen_by_the_counter(loaded: Callable[[str], Checkpoint], job: Job) -> None:
    asked = job("sd3", steps=6)
    shown = reads_of_a_call(loaded("sd3"), asked, preview=True) - reads_of_a_call(loaded("sd3"), asked)
    assert shown.total() > 0
    assert shown["cpu"] >= 6, "the latents of each"


async def test_an_image_is_finished_after_its_turn(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ImageEngine(DEVICE)
    turns: list[object] = []
    drawn = GeneratedImage.image

    def image(self: GeneratedImage, preview_map: PreviewMap) -> Any:
        turns.append(engine._scheduler.current)
        return drawn(self, preview_map)

    monkeypatch.setattr(GeneratedImage, "image", image)
    ended = [event async for event in engine.submit(job("sd", n=2))][-1]
    assert isinstance(ended, Finished), ended
    assert turns == [None, None]


async def test_what_the_device_still_computes_then_is_the_images_time(job: Job) -> None:
    """The last denoising pass and the codec, of each of its calls: a GPU has only queued them when the turn ends."""
    engine = ImageEngine(DEVICE)
    scheduler, clock, late_s = engine._scheduler, engine._scheduler.clock, 1000.0
    waits: list[object] = []

    class Late(Synchronous):
        def mark(self) -> Callable[[], None]:
            return lambda: waits.append(scheduler.current)

    scheduler._timeline, scheduler.clock = Late(), lambda: clock() + late_s * len(waits)
    asked = job("sd", width_px=208, height_px=112, time_limit_s=1e6)
    ended = [event async for event in engine.submit(asked)][-1]
    assert isinstance(ended, Finished), ended
    assert len(waits) > 2, "tiles"
    assert waits[-1] is None, "the device is free for others"
    assert late_s * len(waits) <= ended.run_s < late_s * (len(waits) + 1)
    assert ended.unit_s * work_units(asked) == pytest.approx(ended.run_s)


async def test_an_adapters_file_is_read_while_others_have_the_device(
    spec: Callable[[str], CheckpointSpec], job: Job, tmp_path: Path
) -> None:
    """A pipe stands for a slow disk: whoever reads it waits until it is closed."""
    os.mkfifo(pipe := tmp_path / "slow.safetensors")
    engine = ImageEngine(DEVICE)
    with_adapter = replace(spec("sd"), runtime=Runtime(lora_folder=tmp_path))

    async def last(asked: ImageJob) -> object:
        return [event async for event in engine.submit(asked)][-1]

    def is_read() -> int | None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # which is: nobody reads it
                raise
            return None

    waiting = asyncio.create_task(last(job("sd", id="slow", checkpoint=with_adapter, loras=(("slow", 1.0),))))
    while (writer := is_read()) is None:
        assert not waiting.done(), await waiting
        await asyncio.sleep(0.01)
    assert isinstance(await last(job("sd3", id="other")), Finished)
    assert not waiting.done()
    os.close(writer)
    assert isinstance(await waiting, Failed)  # it is no file of an adapter
