"""`[runtime]` of the catalog: what works here, and how what does not is refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.images.batching import Row
from pipelines.images.checkpoint import Checkpoint, load_checkpoint
from pipelines.images.engine import ImageEngine
from pipelines.images.pipeline import BatchPipeline
from pipelines.images.previews import PreviewMap
from pipelines.images.step_observer import Pixels
from pipelines.protocol.images import CheckpointSpec, Failed, Finished, ImageJob, Lora, Runtime, StepCache

CPU = torch.device("cpu")
Spec = Callable[[str], CheckpointSpec]
Job = Callable[..., ImageJob]


def load(spec: CheckpointSpec, **runtime: object) -> Checkpoint:
    return load_checkpoint(replace(spec, runtime=Runtime(**runtime)), CPU)  # type: ignore[arg-type]


def draw(checkpoint: Checkpoint, job: ImageJob) -> Pixels:
    checkpoint.begin_run(job.sampling)
    return BatchPipeline(checkpoint, [Row(job, 0, 0.0)], lambda _: None, PreviewMap()).generate()[0]


@pytest.fixture(scope="session")
def adapter(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA of the tiny UNet and its text encoder with random weights, in the format that pipelines save."""
    checkpoint = load_checkpoint(spec("sd"), CPU)
    unet = checkpoint.denoiser
    torch.manual_seed(4)
    unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    folder = tmp_path_factory.mktemp("loras")
    text_encoder = checkpoint.components["text_encoder"]
    text_encoder.add_adapter(LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    checkpoint.pipeline_class.save_lora_weights(
        folder,
        unet_lora_layers=get_peft_model_state_dict(unet),
        text_encoder_lora_layers=get_peft_model_state_dict(text_encoder),
        weight_name="sketch.safetensors",
    )
    return folder / "sketch.safetensors"


def test_an_adapter_of_the_catalog_is_always_on_by_its_weight(spec: Spec, job: Job, adapter: Path) -> None:
    plain, none, full = (
        draw(checkpoint, job("sd"))
        for checkpoint in (
            load(spec("sd")),
            load(spec("sd"), loras=(Lora(adapter, 0.0),)),
            load(spec("sd"), loras=(Lora(adapter, 4.0),)),
        )
    )
    assert np.array_equal(plain, none)
    assert not np.array_equal(plain, full)


def test_a_request_may_name_adapters_of_the_operators_folder(spec: Spec, job: Job, adapter: Path) -> None:
    checkpoint = load(spec("sd"), lora_folder=adapter.parent)
    before = draw(checkpoint, job("sd"))
    with_adapter = draw(checkpoint, job("sd", loras=(("sketch", 4.0),)))
    after = draw(checkpoint, job("sd"))
    assert not np.array_equal(before, with_adapter)
    assert np.array_equal(before, after)


def test_adapters_whose_names_have_dots_are_distinct(spec: Spec, job: Job, adapter: Path, tmp_path: Path) -> None:
    for name in ("style.v1", "style.v2", "sketch"):
        shutil.copy(adapter, tmp_path / f"{name}.safetensors")
    checkpoint = load(spec("sd"), lora_folder=tmp_path, loras=(Lora(tmp_path / "style.v1.safetensors", 0.0),))
    plain = draw(checkpoint, job("sd"))
    each = [draw(checkpoint, job("sd", loras=((name, 4.0),))) for name in ("style.v1", "style.v2", "sketch")]
    assert np.array_equal(each[0], each[1])
    assert np.array_equal(each[1], each[2])
    assert not np.array_equal(each[0], plain)


def test_adapters_that_a_run_does_not_request_are_unloaded(spec: Spec, job: Job, adapter: Path, tmp_path: Path) -> None:
    for name in "ab":
        shutil.copy(adapter, tmp_path / f"{name}.safetensors")
    checkpoint = load(spec("sd"), lora_folder=tmp_path)
    before = checkpoint.weights_bytes
    draw(checkpoint, job("sd", loras=(("a", 1.0),)))
    one = checkpoint.weights_bytes
    draw(checkpoint, job("sd", loras=(("b", 1.0),)))
    assert checkpoint.weights_bytes == one > before
    draw(checkpoint, job("sd"))
    assert checkpoint.weights_bytes == before
    assert not checkpoint.pipeline().get_list_adapters()


async def test_an_adapter_that_is_not_there_fails_its_job_by_name(spec: Spec, job: Job, adapter: Path) -> None:
    allowed = replace(spec("sd"), runtime=Runtime(lora_folder=adapter.parent))
    engine = ImageEngine(CPU)
    ended = [event async for event in engine.submit(job("sd", checkpoint=allowed, loras=(("absent", 1.0),)))][-1]
    assert isinstance(ended, Failed)
    assert "absent" in ended.detail


def test_step_caching_skips_work_and_is_reset_for_each_picture(spec: Spec, job: Job) -> None:
    cached = load(spec("klein"), cache=StepCache("taylorseer", interval=2))
    asked = job("klein", steps=8)
    first, second = draw(cached, asked), draw(cached, asked)
    assert np.array_equal(first, second)
    assert not np.array_equal(first, draw(load(spec("klein")), asked))


async def test_runs_on_a_cached_checkpoint_come_one_after_another(spec: Spec, job: Job) -> None:
    import asyncio

    runtime = Runtime(cache=StepCache("taylorseer", interval=2), max_batch=1)
    cached = replace(spec("klein"), runtime=runtime)
    engine = ImageEngine(CPU)

    async def run(steps: int) -> bytes:
        events = [e async for e in engine.submit(job("klein", id=f"{steps}", checkpoint=cached, steps=steps))]
        assert isinstance(events[-1], Finished)
        return events[-1].images[0].data

    alone = [await run(steps) for steps in (30, 4)]
    assert list(await asyncio.gather(run(30), run(4))) == alone


def test_float8_weights_still_draw(spec: Spec, job: Job) -> None:
    small = load(spec("klein"), quantize="float8")
    assert draw(small, job("klein")).shape == (64, 64, 3)
    assert any(weight.dtype == torch.float8_e4m3fn for weight in small.denoiser.parameters())


def test_the_repeated_blocks_are_compiled(spec: Spec) -> None:
    compiled = load(spec("klein"), compile=True).denoiser
    assert any(module._compiled_call_impl is not None for module in compiled.modules())


@pytest.mark.parametrize(
    ("name", "runtime", "message"),
    [
        ("sd", {"cache": StepCache("first-block")}, "runtime.cache: UNet2DConditionModel has no step caching"),
        ("klein", {"cache": StepCache("taylorseer", threshold=0.1)}, "runtime.cache.threshold: taylorseer"),
        ("klein", {"cache": StepCache("magcache")}, "runtime.cache.mag_ratios"),
        ("sd", {"offload": "group"}, "runtime.offload: 'group' is for a GPU"),
        ("sd", {"quantize": "int8"}, "runtime.quantize: 'int8' needs the library torchao"),
        ("sd", {"loras": (Lora(Path("/none/x.safetensors")),)}, "no such file"),
    ],
)
def test_what_a_checkpoint_or_this_machine_cannot_do_is_refused_by_key(
    spec: Spec, name: str, runtime: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(spec(name), **runtime)


def test_an_adapter_of_another_model_is_refused(spec: Spec, adapter: Path) -> None:
    with pytest.raises(CheckpointError, match="does not fit this checkpoint"):
        load(spec("klein"), loras=(Lora(adapter),))


async def test_a_checkpoint_that_loads_and_does_not_draw_is_refused(spec: Spec) -> None:
    odd = replace(spec("sd"), sampling=replace(spec("sd").sampling, scheduler="MagicScheduler"))
    with pytest.raises(CheckpointError, match="MagicScheduler"):
        await ImageEngine(CPU).prepare(odd)


async def test_a_cache_that_breaks_on_a_checkpoint_is_found_in_warmup(spec: Spec) -> None:
    """Diffusers' hooks take this transformer and then fail on its second kind of block."""
    cached = replace(spec("klein"), runtime=Runtime(cache=StepCache("first-block", threshold=0.9)))
    with pytest.raises(CheckpointError, match="loads and does not draw"):
        await ImageEngine(CPU).prepare(cached)
