"""Step caches: every kind of call works with them, and cached runs that take turns draw what they draw alone."""

import asyncio
import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import (
    CheckpointSpec,
    Event,
    Finished,
    ImageJob,
    Progress,
    RawImage,
    Runtime,
    SamplingDefaults,
    StepCache,
)
from tests.engines.conftest import left_half, split_image
from tests.engines.device import DEVICE
from tests.engines.holds import hold_steps
from tests.support.image_jobs import image_job
from tests.support.tiny_families import make_family

CACHES = [StepCache("taylorseer", interval=3), StepCache("first-block", threshold=0.5)]
REFERENCE: tuple[RawImage, ...] = (split_image(upright=True),)
KINDS: dict[str, dict[str, object]] = {
    "text": {},
    "text with n": {"n": 2},
    "image to image": {"references": REFERENCE, "strength": 0.9},
    "mask": {"references": REFERENCE, "mask": left_half(), "strength": 0.9},
    "two passes": {"width_px": 160, "height_px": 96},
}


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    """FLUX.1: of its pipelines only the one for text sets cache contexts."""
    return CheckpointSpec(
        name="flux", path=make_family("flux", tmp_path_factory.mktemp("flux") / "flux"), config=None, family="alpha",
        conditioning="img2img", max_references=1, native_area_px=64 * 64, max_area_px=96 * 96,
        sampling=SamplingDefaults(guidance=2.0, refine_strength=0.5),
    )  # fmt: skip


def cached(spec: CheckpointSpec, cache: StepCache | None) -> CheckpointSpec:
    return replace(spec, runtime=Runtime(cache=cache, max_batch=1))


async def images(
    engine: ImageEngine, job: ImageJob, on_event: Callable[[Event], None] = lambda _: None
) -> list[np.ndarray]:
    events = []
    async for event in engine.submit(job):
        on_event(event)
        events.append(event)
    assert isinstance(events[-1], Finished), events[-1]
    return [np.asarray(Image.open(io.BytesIO(image.data))) for image in events[-1].images]


@pytest.mark.daily("taylorseer-text", "first-block-mask")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: cache.method)
async def test_every_kind_of_call_draws_with_a_cache(flux: CheckpointSpec, cache: StepCache, kind: str) -> None:
    engine = ImageEngine(DEVICE)
    job = image_job(cached(flux, cache), id="cached", steps=9, **KINDS[kind])
    first, second = await images(engine, job), await images(engine, replace(job, id="again"))
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.daily("taylorseer")
@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: cache.method)
async def test_cached_runs_that_take_turns_draw_what_they_draw_alone(
    flux: CheckpointSpec, cache: StepCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ImageEngine(DEVICE)
    spec = cached(flux, cache)
    long = image_job(spec, id="long", steps=60, prompt="a cat")
    short = image_job(spec, id="short", steps=9, seed=11, prompt="blue")
    alone = [await images(engine, job) for job in (long, short)]
    plain = await images(engine, image_job(cached(flux, None), id="plain", steps=60, prompt="a cat"))
    assert not np.array_equal(alone[0][0], plain[0]), "the cache skips nothing here"

    under_way = asyncio.Event()
    order: list[str] = []
    hold_steps(monkeypatch, lambda name, step: name != "long" or step < 40 or "short" in order)

    def on_event(event: Event) -> None:
        if isinstance(event, Progress) and event.step == 3:
            under_way.set()
        if isinstance(event, Finished):
            order.append("long")

    first = asyncio.create_task(images(engine, long, on_event))
    await under_way.wait()
    second = await images(engine, short)
    order.append("short")
    assert np.array_equal(second[0], alone[1][0])
    assert np.array_equal((await first)[0], alone[0][0])
    assert order == ["short", "long"], "they did not take turns"


async def test_the_states_of_a_run_do_not_outlive_the_next(flux: CheckpointSpec) -> None:
    engine = ImageEngine(DEVICE)
    spec = cached(flux, CACHES[0])
    counts = []
    for number in range(4):
        await images(engine, image_job(spec, id=str(number), steps=4))
        caches = (await engine.load(spec)).step_caches
        assert caches is not None
        counts.append(sum(len(states) for states in caches._states()))
    assert max(counts) <= counts[0]
