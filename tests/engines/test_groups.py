"""A denoiser on two processes over gloo: what it draws, through a real worker, and how the group ends."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from PIL import Image

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.shares import Room
from pipelines.images.denoising.step_observer import Pixels
from pipelines.images.engine import ImageEngine
from pipelines.images.loading import runtime_options
from pipelines.images.parallel.group import Group
from pipelines.protocol.images import (
    CheckpointSpec,
    Event,
    Failed,
    Finished,
    ImageJob,
    Lora,
    Parallel,
    Preview,
    Progress,
    Runtime,
    StepCache,
)
from pipelines.protocol.messages import GROUP_NO_MEMORY_EXIT, LOST_GROUP_EXIT
from server.backends.child_process import ChildProcess
from server.backends.engine_host import EngineHost, HostLimits
from tests.engines.conftest import split_image
from tests.engines.shared_passes import difference, drawn, drawn_together
from tests.engines.test_families import family_spec
from tests.support.image_jobs import image_job
from tests.support.polling import eventually
from tests.support.tiny_families import make_family

CPU = torch.device("cpu")
FAMILIES = ("flux", "klein", "qwen-image")
Host = EngineHost[ImageJob, Event]
module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CheckpointSpec]:
    folder, made = tmp_path_factory.mktemp("families"), set[str]()

    def spec(name: str) -> CheckpointSpec:
        if name not in made:
            make_family(name, folder / name)
            made.add(name)
        return family_spec(name, folder, "native" if name == "klein" else "img2img")

    return spec


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host() -> AsyncIterator[Host]:
    """A worker with two processes, one thread each."""
    launcher = ChildProcess("image", ["--devices=2"], {"OMP_NUM_THREADS": "1"})
    made: Host = EngineHost("image", (), HostLimits(64), device="cpu", launcher=launcher)
    await made.start()
    await eventually(lambda: made.status.device is not None)
    yield made
    await made.stop()


async def last(host: Host, job: ImageJob) -> Event:
    return [event async for event in host.submit(job)][-1]


def images(event: Event) -> list[Pixels]:
    assert isinstance(event, Finished), event
    return [np.asarray(Image.open(io.BytesIO(image.data))) for image in event.images]


def apart(one: Event, other: Event) -> int:
    """Levels of 255."""
    pairs = zip(images(one), images(other), strict=True)
    return max(int(np.abs(a.astype(int) - b).max()) for a, b in pairs)


def grouped(spec: CheckpointSpec, parallel: Parallel, **options: Any) -> CheckpointSpec:
    return replace(spec, runtime=Runtime(gpus=2, parallel=parallel, **options))


@pytest.mark.parametrize(
    ("name", "parallel"),
    [
        pytest.param(name, parallel, marks=() if (name, parallel) == ("flux", "context") else pytest.mark.nightly)
        for name in FAMILIES
        for parallel in ("context", "tensor")
    ],
)
@module_loop
async def test_images_are_those_of_one_process(
    name: str, parallel: Parallel, host: Host, family: Callable[[str], CheckpointSpec]
) -> None:
    alone = family(name)
    together = grouped(alone, parallel)
    reference = {"references": (split_image(upright=True),), "steps": 4}
    changes: list[dict[str, Any]] = [
        {},
        {"prompt": "a much longer prompt of a red boat"},
        {"width_px": 96, "n": 2},
        {"width_px": 112, "height_px": 80},  # 35 tokens: no two equal parts
        reference,
        {**reference, "width_px": 128, "height_px": 96},  # in two passes
    ]
    for number, change in enumerate(changes):
        one = await last(host, image_job(alone, id=f"{name}-{parallel}-{number}-alone", **change))
        two = await last(host, image_job(together, id=f"{name}-{parallel}-{number}", **change))
        assert apart(one, two) <= 1, change


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["flux", pytest.param("qwen-image", marks=pytest.mark.nightly)])
async def test_calls_at_once_share_passes(name: str, family: Callable[[str], CheckpointSpec]) -> None:
    """In this process, so that all wait before the first one is drawn."""
    pair = Group(CPU, 2)
    try:
        engine = ImageEngine(CPU, group=pair)
        alone = family(name)
        together = grouped(alone, "context")
        changes: list[dict[str, Any]] = [{"prompt": "a " * n, "seed": n, "steps": 2 + n} for n in range(3)]
        jobs = [image_job(together, id=f"{n}", **change) for n, change in enumerate(changes)]
        events = await drawn_together(engine, jobs)
        for job, event in zip(jobs, events, strict=True):
            expected = await drawn(engine, replace(job, id=f"{job.id}-alone", checkpoint=alone))
            assert difference(event, expected) <= 1
        assert [isinstance(event, Finished) and event.merged for event in events] == [True] * 3
        engine.unload_except([])
        assert await drawn(engine, jobs[0])  # loaded again
    finally:
        pair.close()


@module_loop
async def test_an_image_is_cancelled_between_two_steps_and_the_next_is_drawn(
    host: Host, family: Callable[[str], CheckpointSpec]
) -> None:
    spec = grouped(family("flux"), "context")
    assert images(await last(host, image_job(spec, id="first")))  # previews are fitted to one
    long = image_job(spec, id="long", steps=400, previews=2)
    ended: Event | None = None
    async for event in host.submit(long):
        if isinstance(event, Progress) and event.step == 3:
            host.cancel("long")
        ended = event
    assert isinstance(ended, Failed)
    assert ended.code == "cancelled"
    events = [event async for event in host.submit(image_job(spec, id="next", steps=6, previews=2))]
    assert sum(isinstance(event, Preview) for event in events) == 2
    assert isinstance(events[-1], Finished)


@module_loop
async def test_warmup_says_how_a_checkpoint_is_divided(host: Host, family: Callable[[str], CheckpointSpec]) -> None:
    """All that the classes announce is tried on both processes."""
    spec = grouped(family("flux"), "auto")
    assert await host.prepare(spec)
    assert "on 2 devices, parallel = 'context'" in host.checkpoints[spec].detail
    assert "without" not in host.checkpoints[spec].detail


@module_loop
async def test_text_encoders_are_on_the_second_device(host: Host, family: Callable[[str], CheckpointSpec]) -> None:
    """On a CPU both devices are one; tests/engines/test_second_device.py has two."""
    alone = family("flux")
    spec = grouped(alone, "encoders")
    assert apart(await last(host, image_job(spec, id="e")), await last(host, image_job(alone, id="a"))) == 0


@module_loop
async def test_a_worker_with_another_number_of_devices_refuses_it(
    host: Host, family: Callable[[str], CheckpointSpec]
) -> None:
    spec = replace(family("flux"), runtime=Runtime(gpus=4))
    with pytest.raises(CheckpointError, match="it takes 4 GPUs, and its image worker has 2"):
        await host.prepare(spec)


@pytest.mark.parametrize(
    ("name", "runtime", "devices", "reason"),
    [
        ("flux", Runtime(gpus=2), 1, "it takes 2 GPUs, and its image worker has 1"),
        ("flux", Runtime(gpus=3), 3, "3 does not divide the 2 attention heads"),
        ("flux", Runtime(gpus=3, parallel="tensor"), 3, "3 does not divide the 2 attention heads"),
        ("flux", Runtime(gpus=3, parallel="encoders"), 3, 'parallel = "encoders" is for two GPUs'),
        ("flux", Runtime(gpus=2, parallel="encoders"), 1, "it takes 2 GPUs, and its image worker has 1"),
        ("chroma", Runtime(gpus=2, parallel="context"), 2, "no plan for context parallelism of ChromaTransformer2DM"),
        ("chroma", Runtime(gpus=4), 4, "with gpus = 2 its text encoders could be on the second one"),
        ("flux", Runtime(gpus=2, offload="model"), 2, "gpus and offload defeat each other"),
        ("flux", Runtime(gpus=2, compile=True), 2, "gpus and compile defeat each other"),
        ("flux", Runtime(gpus=2, cache=StepCache("first-block")), 2, "gpus and cache defeat each other"),
        ("flux", Runtime(gpus=2, lora_folder=Path("loras")), 2, "gpus and lora_folder defeat each other"),
        ("flux", Runtime(gpus=2, quantize="float8"), 2, "gpus and quantize defeat each other"),
        ("flux", Runtime(gpus=2, parallel="tensor", loras=(Lora(Path("x")),)), 2, "'tensor' and quantize or loras"),
    ],
)
def test_what_can_not_be_divided_is_refused_before_it_is_read(
    name: str, runtime: Runtime, devices: int, reason: str, family: Callable[[str], CheckpointSpec]
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        runtime_options.resolve(replace(family(name), runtime=runtime), CPU, Room(2**40), devices)


def test_a_class_without_a_plan_has_its_text_encoders_on_the_second_device(
    family: Callable[[str], CheckpointSpec],
) -> None:
    chosen, notes = runtime_options.resolve(replace(family("chroma"), runtime=Runtime(gpus=2)), CPU, Room(2**40), 2)
    assert chosen.parallel == "encoders"
    assert notes == ("on 2 devices, parallel = 'encoders'",)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("story", "status"),
    [
        ("fail_alike_then_go_on", 0),
        ("refuse_what_does_not_fit_on_the_other_process", 0),
        ("fail_at_another_place", LOST_GROUP_EXIT),
        ("wait_for_a_stopped_process", LOST_GROUP_EXIT),
        ("die_beside_a_stopped_process", -signal.SIGKILL),
        ("run_out_of_memory_alone", GROUP_NO_MEMORY_EXIT),
        ("let_the_other_process_run_out_of_memory", GROUP_NO_MEMORY_EXIT),
    ],
)
def test_a_group_goes_on_or_ends_as_one(story: str, status: int) -> None:
    """The ranks have its output too, which therefore ends with the last of them."""
    command = [sys.executable, "-m", "tests.support.group_stories", story]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
    try:
        process.communicate(timeout=600)
        assert process.returncode == status
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
