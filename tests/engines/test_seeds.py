"""A seed is a picture: the same bits whatever else draws in the process, and other noise from each seed."""

import asyncio
import contextlib
import inspect
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import diffusers
import numpy as np
import pytest
import torch

from pipelines.images.denoising.own_noise import bind_generator, new_generator, tile_seed
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.denoising.step_observer import Pixels
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.images import CheckpointSpec, Control, ControlInput, Finished, ImageJob
from tests.engines.conftest import left_half, plain_image, split_image
from tests.engines.device import DEVICE, of_a_cpu
from tests.engines.shared_passes import drawn, last_event
from tests.engines.test_families import CAPABILITIES, NIGHTLY, family_spec, require
from tests.support.image_jobs import image_job
from tests.support.tiny_families import make_family
from tests.support.tiny_families.controls import make_controlnet

UPRIGHT, ACROSS = split_image(upright=True), split_image(upright=False)
INPUTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "text": {},
    "reference": {"references": (UPRIGHT,), "strength": 0.9},
    "mask": {"references": (UPRIGHT,), "mask": left_half(), "strength": 1.0},
}
ALL = tuple(INPUTS)
# The schedulers that draw with each checkpoint, and from what
OF_EPSILON = (
    "CMStochasticIterative", "CogVideoXDDIM", "CosineDPMSolverMultistep", "DDIM", "DDPM", "DEISMultistep",
    "DPMSolverMultistep", "DPMSolverSDE", "DPMSolverSinglestep", "EDMDPMSolverMultistep", "EDMEuler",
    "EulerAncestralDiscrete", "EulerDiscrete", "HeunDiscrete", "KDPM2AncestralDiscrete", "KDPM2Discrete", "LCM",
    "LMSDiscrete", "PNDM", "SASolver", "TCD", "UniPCMultistep",
)  # fmt: skip
OF_FLOWS = ("FlowMatchEulerDiscrete", "FlowMatchHeunDiscrete", "FlowMatchLCM", "FlowMapEulerDiscrete", "MiniMaxH3")
TEXT_OF_FLOWS = (
    "CMStochasticIterative", "CosineDPMSolverMultistep", "DDPM", "DPMSolverSDE", "EulerAncestralDiscrete",
    "KDPM2AncestralDiscrete", "LCM", "LTXEulerAncestralRF", "SASolver", "TCD",
)  # fmt: skip
DRAWN_BY: Final = [
    *(("sd15", name, ALL) for name in OF_EPSILON),
    *(("sd3", name, ALL) for name in OF_FLOWS),
    *(("sd3", name, ("text",)) for name in TEXT_OF_FLOWS),
    *(("klein", name, ALL) for name in ("FlowMatchEulerDiscrete", "FlowMatchLCM")),
]
LIBRARIES: Final = {"CosineDPMSolverMultistep": "torchsde", "DPMSolverSDE": "torchsde", "LMSDiscrete": "scipy"}
# Of a catalog file or a checkpoint's own config
CONFIGS: Final = [
    ("sd3", {"stochastic_sampling": True}),
    ("klein", {"stochastic_sampling": True}),
    ("sd", {"algorithm_type": "sde-dpmsolver++"}),
]
Job = Callable[..., ImageJob]


@contextlib.contextmanager
def global_generator_in_use() -> Iterator[None]:
    """Another thread seeds torch's global generator and draws from it all the time."""
    ended = threading.Event()

    def use() -> None:
        count = 0
        while not ended.wait(0.0005):
            torch.manual_seed(count := count + 1)
            torch.randn(3)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def draws_the_same(engine: ImageEngine, job: ImageJob) -> None:
    """Alone, and three times beside others, with previews once."""
    exact = replace(job, sampling=replace(job.sampling, batch="exact"))
    (alone,) = await drawn(engine, exact)
    with global_generator_in_use():
        for number, again in enumerate((exact, replace(exact, previews=2), exact)):
            other = replace(exact, id="other", seed=job.seed + 1 + number)
            (image,), (another,) = await asyncio.gather(drawn(engine, again), drawn(engine, other))
            assert np.array_equal(image, alone)
            assert not np.array_equal(another, alone)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "scheduler", "inputs"), DRAWN_BY, ids=lambda each: each if str(each) == each else "")
async def test_every_scheduler_draws_the_same_beside_others(
    name: str, scheduler: str, inputs: tuple[str, ...], tmp_path: Path
) -> None:
    if scheduler in LIBRARIES:
        pytest.importorskip(LIBRARIES[scheduler])
    if not hasattr(diffusers, f"{scheduler}Scheduler"):
        pytest.skip(f"diffusers {diffusers.__version__} has none")
    make_family(name, tmp_path / name)
    spec, engine = family_spec(name, tmp_path, CAPABILITIES[name][0]), ImageEngine(DEVICE)
    for given in inputs:
        await draws_the_same(engine, image_job(spec, steps=4, scheduler=f"{scheduler}Scheduler", **INPUTS[given]))


@pytest.mark.daily("klein-reference")
@pytest.mark.parametrize(("name", "given"), [("sd3", "text"), ("sd3", "mask"), ("klein", "reference")])
async def test_steps_of_flow_matching_draw_the_noise_of_their_image(name: str, given: str, job: Job) -> None:
    """Their pipelines hand no generator to the scheduler."""
    await draws_the_same(ImageEngine(DEVICE), job(name, steps=3, scheduler="FlowMatchLCMScheduler", **INPUTS[given]))


@pytest.mark.daily("sd3-config0")
@pytest.mark.parametrize(("name", "config"), CONFIGS)
async def test_a_checkpoints_own_scheduler_draws_the_same_too(
    name: str, config: dict[str, Any], spec: Callable[[str], CheckpointSpec]
) -> None:
    kind = "DPMSolverMultistepScheduler" if "algorithm_type" in config else None
    sampling = replace(spec(name).sampling, scheduler=kind, scheduler_config=tuple(config.items()))
    checkpoint, engine = replace(spec(name), sampling=sampling), ImageEngine(DEVICE)
    await draws_the_same(engine, image_job(checkpoint, steps=3, width_px=112, height_px=64))  # two passes
    plain = [await drawn(engine, image_job(each, steps=3)) for each in (checkpoint, spec(name))]
    assert not np.array_equal(*plain), "the config draws no noise"


async def test_a_shared_pass_leaves_each_image_its_noise(job: Job) -> None:
    engine = ImageEngine(DEVICE)
    noisy = job("sd3", n=2, steps=3, scheduler="FlowMatchLCMScheduler")
    with global_generator_in_use():
        together = await drawn(engine, noisy)
        alone = [(await drawn(engine, replace(noisy, n=1, seed=noisy.seed + index)))[0] for index in range(2)]
    for one, other in zip(together, alone, strict=True):
        assert np.abs(one.astype(int) - other).max() <= 2


def test_a_sampler_of_noise_begins_with_the_seed_of_its_image() -> None:
    """As of DPMSolverSDEScheduler, which asks torch's global generator for a seed if it has none."""

    class Sampler:
        def __init__(self, noise_sampler_seed: int | None = None) -> None:
            self.noise_sampler_seed = noise_sampler_seed

        def step(self, latents: Any, generator: torch.Generator | None = None) -> torch.Tensor:
            return torch.randn(3, generator=generator)

    ours, own = Sampler(), Sampler(7)
    bind_generator(ours, new_generator(2**40 + 5))
    bind_generator(own, new_generator(5))
    assert (ours.noise_sampler_seed, own.noise_sampler_seed) == (2**40 + 5, 7)
    expected = new_generator(2**40 + 5)
    other = torch.Generator().manual_seed(9)
    assert torch.equal(ours.step(None), torch.randn(3, generator=expected))
    assert torch.equal(ours.step(None, None), torch.randn(3, generator=expected))
    assert torch.equal(ours.step(None, other), torch.randn(3, generator=torch.Generator().manual_seed(9)))
    assert "generator" in inspect.signature(ours.step).parameters, "pipelines look"


@pytest.mark.parametrize("seed", [0, 5, 2**32 - 1])
def test_a_seed_of_32_bits_is_torchs_own(seed: int) -> None:
    ours, theirs = new_generator(seed), torch.Generator().manual_seed(seed)
    assert torch.equal(torch.randn(64, generator=ours), torch.randn(64, generator=theirs))
    for number in (0, 7):  # as the lowest 32 bits of what it always was
        assert tile_seed(seed, number) == (seed * 1_000_003 + number + 1) % 2**63 % 2**32


@pytest.mark.parametrize("seed", [2**32, 2**32 + 5, 2**53 + 1, 2**63 - 1])
def test_a_larger_seed_is_drawn_by_both_of_its_words(seed: int) -> None:
    """As MT19937's authors, and so NumPy, initialise it by an array."""
    ours = torch.empty(700, dtype=torch.int64).random_(0, 2**16, generator=new_generator(seed))
    theirs = np.random.RandomState([seed % 2**32, seed // 2**32]).randint(0, 2**32, 700, np.uint32)
    assert ours.tolist() == (theirs % 2**16).tolist()
    assert new_generator(seed).initial_seed() == seed


@pytest.mark.daily("sd")
@pytest.mark.parametrize("name", ["sd", "klein"])
def test_seeds_that_differ_in_high_bits_alone_are_other_images(
    name: str, job: Job, spec: Callable[[str], CheckpointSpec]
) -> None:
    checkpoint = load_checkpoint(spec(name), DEVICE)
    for fields in ({"references": (UPRIGHT,)}, {"width_px": 112, "height_px": 64}):  # the second in two passes
        images = [draw(checkpoint, job(name, seed=seed, **fields)) for seed in (5, 5 + 2**32, 5 + 2**62, 5 + 2**32)]
        assert np.array_equal(images[1], images[3])
        assert len({image.tobytes() for image in images}) == 3
    last = draw(checkpoint, job(name, seed=2**32 - 1, n=2), index=1)
    assert np.array_equal(last, draw(checkpoint, job(name, seed=2**32)))


def draw(checkpoint: Any, job: ImageJob, index: int = 0) -> Pixels:
    return ImagePipeline(checkpoint, Row(job, index, 0.0), lambda _: None, PreviewMap()).generate()


def generator_states() -> list[bytes]:
    torch_s, numpy_s = torch.get_rng_state().numpy().tobytes(), np.random.get_state()
    return [torch_s, repr((numpy_s[2:], numpy_s[1].tobytes())).encode(), repr(random.getstate()).encode()]  # type: ignore[index,union-attr]


SEEDS_ITSELF = {"glm-image"}  # its call seeds torch's global generator for its tokens, which do not come from it here
WAYS = {
    "text": lambda spec, has: {} if has[0] else None,
    "reference": lambda spec, has: INPUTS["reference"] if has[1] else None,
    "references": lambda spec, has: {"references": (UPRIGHT, ACROSS)} if has[1] > 1 else None,
    "mask": lambda spec, has: INPUTS["mask"] if has[2] else None,
    "two passes": lambda spec, has: {"width_px": 112, "height_px": 128} if has[0] and has[3] else None,
}


@of_a_cpu
@pytest.mark.daily("sd15")
@pytest.mark.parametrize("name", [*CAPABILITIES, *NIGHTLY])
def test_nothing_under_a_draw_takes_numbers_from_the_process(name: str, tmp_path: Path) -> None:
    """Whatever code of a library or ours does. So an image does not depend on what else draws, or is loaded."""
    require(name)
    make_family(name, tmp_path / name)
    conditioning, has = {**CAPABILITIES, **NIGHTLY}[name]
    spec = family_spec(name, tmp_path, conditioning)
    checkpoint = load_checkpoint(spec, DEVICE)
    given = {"controls": (ControlInput("map", plain_image(), 1.0),)} if spec.own_map is not None else {}
    for inputs in filter(lambda each: each is not None, (way(spec, has) for way in WAYS.values())):
        job = image_job(spec, **inputs, **given)
        images = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            before = generator_states()
            images.append(draw(checkpoint, job))
            assert generator_states() == before or name in SEEDS_ITSELF
        assert np.array_equal(*images)


@of_a_cpu
@pytest.mark.nightly
def test_tokens_of_a_language_model_are_of_the_image(tmp_path: Path) -> None:
    """As bare diffusers draws them in a process of its own, whatever others draw meanwhile."""
    spec = family_spec("glm-image", tmp_path, "native")
    make_family("glm-image", spec.path)
    checkpoint, found = load_checkpoint(spec, DEVICE), []
    generate = checkpoint.components["vision_language_encoder"].generate

    def record(**arguments: Any) -> Any:
        found.append(generate(**arguments))
        return found[-1]

    checkpoint.components["vision_language_encoder"].generate = record
    job = image_job(spec)
    alone = draw(checkpoint, job)
    with global_generator_in_use():
        assert np.array_equal(draw(checkpoint, job), alone)
    draw(checkpoint, replace(job, seed=6))
    bare = diffusers.GlmImagePipeline.from_pretrained(spec.path)
    bare.vision_language_encoder.generate, plain = record, bare.vision_language_encoder.generate
    generate = plain
    bare.set_progress_bar_config(disable=True)
    bare(job.prompt, width=64, height=64, num_inference_steps=1, generator=torch.Generator().manual_seed(job.seed))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(found[0], found[3])


@of_a_cpu
def test_a_map_that_a_codec_samples_is_of_the_image(tmp_path: Path) -> None:
    """SD3's ControlNets sample its latents without a generator; the image's first noise stays that of its seed."""
    plain = family_spec("sd3", tmp_path, "img2img")
    make_family("sd3", plain.path)
    net = make_controlnet(load_checkpoint(plain, DEVICE).denoiser, tmp_path / "edges")
    spec = replace(plain, controls=(Control("edges", "controlnet", net, "canny"),))
    checkpoint = load_checkpoint(spec, DEVICE)
    job = image_job(spec, controls=(ControlInput("edges", UPRIGHT, 1.0),))
    before = torch.get_rng_state()
    first = draw(checkpoint, job)
    assert torch.equal(torch.get_rng_state(), before)
    with global_generator_in_use():
        assert np.array_equal(draw(checkpoint, job), first)
    without = image_job(spec, controls=(ControlInput("edges", UPRIGHT, 0.0),))
    assert np.array_equal(draw(checkpoint, without), draw(checkpoint, image_job(spec)))


def test_every_scheduler_of_a_pipeline_is_the_images_own(tmp_path: Path) -> None:
    """A prior's too: two images may have other numbers of steps."""
    spec = family_spec("kandinsky21", tmp_path, "img2img")
    make_family("kandinsky21", spec.path)
    checkpoint = load_checkpoint(spec, DEVICE)
    one, other = checkpoint.pipeline(), checkpoint.pipeline()
    for name in ("scheduler", "prior_scheduler"):
        schedulers = [getattr(one, name), getattr(other, name), checkpoint.components[name]]
        assert len({id(each) for each in schedulers}) == 3
        assert schedulers[0].config == schedulers[2].config


class OtherNoiseScheduler(diffusers.FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]
    """Adds noise in its steps that it asks no generator of its caller for."""

    def step(self, model_output: Any, timestep: Any, sample: Any, **options: Any) -> Any:
        (stepped,) = super().step(model_output, timestep, sample, return_dict=False)
        return (stepped + torch.randn_like(stepped),)


@pytest.fixture
def other_noise(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(diffusers, "OtherNoiseScheduler", OtherNoiseScheduler, raising=False)
    return "OtherNoiseScheduler"


async def test_warmup_offers_no_scheduler_that_draws_other_noise_each_time(
    spec: Callable[[str], CheckpointSpec], other_noise: str
) -> None:
    found = await ImageEngine(DEVICE).prepare(replace(spec("sd3"), schedulers=(other_noise, "FlowMatchLCMScheduler")))
    assert found.unsupported_schedulers == (other_noise,)
    assert found.reproducible
    (failed,) = found.failed_checks
    assert str(failed).startswith(f"the scheduler {other_noise}: its noise is another each time: ")


async def test_a_checkpoint_that_draws_other_noise_each_time_says_so(
    spec: Callable[[str], CheckpointSpec], other_noise: str
) -> None:
    sampling = replace(spec("sd3").sampling, scheduler=other_noise)
    checkpoint = replace(spec("sd3"), sampling=sampling, schedulers=("FlowMatchEulerDiscreteScheduler",))
    engine = ImageEngine(DEVICE)
    found = await engine.prepare(checkpoint)
    assert (found.reproducible, found.unsupported_schedulers) == (False, ())
    assert "the same image from a seed: its noise is another each time" in "; ".join(map(str, found.failed_checks))
    event = await last_event(engine, image_job(checkpoint))
    assert isinstance(event, Finished)
    assert event.found["reproducible"] is False
