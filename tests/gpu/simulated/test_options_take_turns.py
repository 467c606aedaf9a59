"""Runs take turns at every step, with every option: what libraries do to `forward` must not end that."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict

from pipelines.images.denoising import pass_graphs
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.scheduler import DeviceScheduler
from pipelines.protocol.images import CheckpointSpec, Event, ImageJob, Progress, Runtime
from tests.engines.shared_passes import drawn_together
from tests.gpu.conftest import draw
from tests.simulated_gpu import device
from tests.support.image_jobs import image_job
from tests.support.runtime_pairs import OPTIONS, runtime_of


@pytest.fixture(autouse=True)
def no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch every pass: a capture waits once, to compare its bits (tests/engines/test_pass_graphs.py)."""
    monkeypatch.setattr(pass_graphs, "CAPTURED_AT", 10**9)


GPU = torch.device("cuda")
TOGETHER = (("offload group", "float8"), ("offload model", "float8"), ("offload model", "lora_folder"))
EVERY_RUN = ((), ("offload group",), ("offload group", "float8"))
# Where the host waits at every step: at the fence, until the copying stream has fetched an offloaded layer, which no
# kernel keeps it from, and where the first block says whether the others are computed
LISTED = {
    "catch_up",
    "_should_compute_remaining_blocks",
    "_onload_from_memory",
    "_transfer_tensor_to_device",
    "pre_forward",
}
CHOICES = [(), *((name,) for name in OPTIONS), *TOGETHER]


@pytest.fixture(scope="module")
def with_adapter(flux: CheckpointSpec) -> CheckpointSpec:
    """The small FLUX.1, with an adapter in loras/ beside it."""
    checkpoint = load_checkpoint(flux, torch.device("cpu"))
    checkpoint.denoiser.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    checkpoint.pipeline_class.save_lora_weights(
        flux.path.parent / "loras",
        transformer_lora_layers=get_peft_model_state_dict(checkpoint.denoiser),
        weight_name="style.safetensors",
    )
    return flux


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a run has waited at the scheduler for its next turn."""
    counts: Counter[str] = Counter()
    yield_point = DeviceScheduler.yield_point

    def count(self: DeviceScheduler, *arguments: Any) -> None:
        counts["yield_point"] += self.current is not None
        yield_point(self, *arguments)

    monkeypatch.setattr(DeviceScheduler, "yield_point", count)
    return counts


def job_of(spec: CheckpointSpec, steps: int, names: tuple[str, ...]) -> ImageJob:
    """With `lora_folder`, the job asks for the adapter: the library takes its hooks off to load it."""
    asked = {"loras": (("style", 1.0),)} if "lora_folder" in names else {}
    return image_job(spec, id=f"{steps}", steps=steps, **asked)


def innermost(place: str) -> str:
    return place.partition(" < ")[0].rpartition(" ")[2]


@pytest.mark.parametrize(
    "names",
    [pytest.param(each, marks=() if each in EVERY_RUN else pytest.mark.nightly) for each in CHOICES],
    ids=lambda names: " and ".join(names) or "plain",
)
async def test_a_run_meets_the_scheduler_at_every_step(
    names: tuple[str, ...], with_adapter: CheckpointSpec, met: Counter[str]
) -> None:
    spec = replace(with_adapter, runtime=runtime_of(names, with_adapter.path.parent / "loras"))
    engine = ImageEngine(GPU)
    await draw(engine, image_job(spec, id="before", steps=2))  # without the adapter
    turns, fences, others = [], [], []
    for steps in (4, 7):
        met.clear()
        device.log.take()
        await draw(engine, job_of(spec, steps, names))
        turns.append(met["yield_point"])
        waits = device.log.waits()
        fences.append(sum(count for (_, place), count in waits.items() if " catch_up" in place))
        others.append(Counter({each: n for each, n in waits.items() if innermost(each[1]) not in LISTED}))
    assert turns[1] - turns[0] == 3
    assert fences[1] - fences[0] == 3
    assert others[1] - others[0] == Counter()


@pytest.mark.parametrize("offload", ["none", "group"])
async def test_a_draft_ends_before_a_long_image_has_done_a_third(offload: Any, flux: CheckpointSpec) -> None:
    engine, spec = ImageEngine(GPU), replace(flux, runtime=Runtime(offload=offload))
    await draw(engine, image_job(spec, id="first", steps=2))
    steps: list[int] = []
    under_way = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Progress):
            steps.append(event.step)
            under_way.set()

    long = asyncio.create_task(draw(engine, image_job(spec, id="long", steps=30, owner="a"), on_event))
    long.add_done_callback(lambda _: under_way.set())
    await under_way.wait()
    await draw(engine, image_job(spec, id="draft", steps=2, width_px=96, owner="b"))
    assert steps[-1] < 10
    await long
    assert steps[-1] == 30


@pytest.mark.parametrize("offload", ["none", "model", "group"])
async def test_adapters_come_and_go_between_images_and_over_a_sleep(offload: Any, with_adapter: CheckpointSpec) -> None:
    spec = replace(with_adapter, runtime=Runtime(offload=offload, lora_folder=with_adapter.path.parent / "loras"))
    engine = ImageEngine(GPU)
    images = []
    for number, loras in enumerate(((), (("style", 1.0),), (), (("style", 0.5),), (("style", 1.0),))):
        images.append((await draw(engine, image_job(spec, id=f"{number}", steps=2, loras=loras)))[0])
        if number == 3:
            await engine.sleep()
    plain, adapted, plain_again, _, adapted_again = images
    assert np.array_equal(plain, plain_again)
    assert np.array_equal(adapted, adapted_again)
    assert len({image.tobytes() for image in images}) == 3


@pytest.mark.parametrize("offload", ["encoders", "group"])
async def test_images_share_passes_with_offloaded_blocks(offload: Any, flux: CheckpointSpec) -> None:
    engine, spec = ImageEngine(GPU), replace(flux, runtime=Runtime(offload=offload))
    await draw(engine, image_job(spec, id="first", steps=2))
    events = await drawn_together(
        engine, [image_job(spec, id=f"{number}", seed=number, steps=6) for number in range(2)]
    )
    assert all(getattr(event, "merged", False) for event in events)


async def test_text_encoders_come_to_the_device_for_a_new_prompt_alone(flux: CheckpointSpec, gpu: Any) -> None:
    (expected,) = await draw(ImageEngine(GPU), image_job(flux))
    engine, spec = ImageEngine(GPU), replace(flux, runtime=Runtime(offload="encoders"))
    assert np.array_equal((await draw(engine, image_job(spec, id="first")))[0], expected)
    components = (await engine.load(spec)).components
    modules = {name: part for name, part in components.items() if isinstance(part, torch.nn.Module)}
    encoders = {"text_encoder", "text_encoder_2"}
    places = {name: {weight.device.type for weight in part.parameters()} for name, part in modules.items()}
    assert places == {name: {"cpu"} if name in encoders else {"cuda"} for name in modules}
    copied = []
    for name, prompt in (("known", image_job(spec).prompt), ("new", "a lighthouse in fog")):
        before = gpu.calls_by_name()["copy to device"]
        await draw(engine, image_job(spec, id=name, prompt=prompt))
        copied.append(gpu.calls_by_name()["copy to device"] - before)
    weights = sum(len(list(modules[name].parameters())) for name in encoders)
    assert copied[0] < weights <= copied[1]
