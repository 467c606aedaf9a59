"""`[runtime]` of the catalog: what works here, and how what does not is refused."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.denoising.step_observer import Pixels
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.engine import ImageEngine
from pipelines.images.loading import checkpoint_cache
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.compilation import RECOMPILE_LIMIT, fuse_projections
from pipelines.images.loading.fp8 import Fp8Linear, quantize_linears, suitable_linears
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.images import CheckpointSpec, Failed, Finished, ImageJob, Lora, Progress, Runtime, StepCache
from pipelines.protocol.messages import CachedCheckpoints
from tests.engines.device import DEVICE, of_a_cpu

Spec = Callable[[str], CheckpointSpec]
Job = Callable[..., ImageJob]


def load(spec: CheckpointSpec, **runtime: object) -> Checkpoint:
    return load_checkpoint(replace(spec, runtime=Runtime(**runtime)), DEVICE)  # type: ignore[arg-type]


def draw(checkpoint: Checkpoint, job: ImageJob) -> Pixels:
    checkpoint.begin_run(job.sampling)
    return ImagePipeline(checkpoint, Row(job, 0, 0.0), lambda _: None, PreviewMap()).generate()


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
    engine = ImageEngine(DEVICE)
    ended = [event async for event in engine.submit(job("sd", checkpoint=allowed, loras=(("absent", 1.0),)))][-1]
    assert isinstance(ended, Failed)
    assert "absent" in ended.detail


async def test_adapters_that_do_not_fit_are_refused_in_plain_words(spec: Spec, adapter: Path) -> None:
    unsupported = replace(spec("klein"), runtime=Runtime(lora_folder=adapter.parent))
    with pytest.raises(CheckpointError, match=r"no adapter in .* fits .*: sketch: it does not fit this checkpoint: "):
        await ImageEngine(DEVICE).prepare(unsupported)


def test_step_caching_skips_work_and_is_reset_for_each_image(spec: Spec, job: Job) -> None:
    cached = load(spec("klein"), cache=StepCache("taylorseer", interval=2))
    asked = job("klein", steps=8)
    first, second = draw(cached, asked), draw(cached, asked)
    assert np.array_equal(first, second)
    assert not np.array_equal(first, draw(load(spec("klein")), asked))


@pytest.mark.nightly
async def test_runs_on_a_cached_checkpoint_come_one_after_another(spec: Spec, job: Job) -> None:
    runtime = Runtime(cache=StepCache("taylorseer", interval=2), max_batch=1)
    cached = replace(spec("klein"), runtime=runtime)
    engine = ImageEngine(DEVICE)

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


def test_fp8_computes_in_float8_near_the_exact_image_and_says_how_near(spec: Spec, job: Job) -> None:
    quantized = load(spec("klein"), quantize="fp8")
    names = [name for name, layer in quantized.denoiser.named_modules() if isinstance(layer, Fp8Linear)]
    assert names
    assert not any("norm" in name or "embed" in name or "proj_out" in name for name in names)
    assert quantized.notes[0].startswith(f"fp8: {len(names)} linear layers")
    exact = load(spec("klein"))
    near, plain = draw(quantized, job("klein")), draw(exact, job("klein"))
    assert not np.array_equal(near, plain)
    assert np.abs(near.astype(int) - plain).mean() < 3
    assert quantized.weights_bytes < exact.weights_bytes


def test_the_error_of_fp8_is_that_of_its_format() -> None:
    """Three bits of mantissa: at most 2**-4 of each factor, about 2.6 % of each, over sums of many products."""
    layers = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 40), torch.nn.Linear(40, 256))
    report = quantize_linears(layers, DEVICE)
    assert (report.layers, report.left_out) == (1, 2)  # 40 is no multiple of 16
    assert 0.02 < report.mean_error < 0.06
    with pytest.raises(ValueError, match="no linear layers"):
        quantize_linears(torch.nn.Sequential(torch.nn.Linear(8, 8)), DEVICE)


def test_a_torch_without_such_products_is_refused_by_name(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_in_2_11(*_: object, **__: object) -> None:
        raise RuntimeError("(scale_a.numel() == 1 && scale_b.numel() == 1) INTERNAL ASSERT FAILED")

    monkeypatch.setattr(torch, "_scaled_mm", as_in_2_11)
    with pytest.raises(
        CheckpointError, match=rf"runtime.quantize: 'fp8' needs another torch: .* on this {DEVICE.type.upper()}"
    ):
        load(spec("klein"), quantize="fp8")


@pytest.mark.parametrize(
    ("denoiser", "exact"),
    [
        ("FluxTransformer2DModel", {"norm.linear", "norm1.linear", "norm1_context.linear"}),
        ("QwenImageTransformer2DModel", {"img_mod.1", "txt_mod.1"}),
        ("Flux2Transformer2DModel", set()),
        ("ChromaTransformer2DModel", set()),
        ("SD3Transformer2DModel", {"norm1.linear", "norm1_context.linear"}),
    ],
)
def test_fp8_computes_all_of_the_blocks_but_their_modulation(denoiser: str, exact: set[str]) -> None:
    """FLUX.1's single blocks end in `proj_out`, as the transformer does: 28 % of what its linear layers multiply."""
    with torch.device("meta"):
        network = getattr(diffusers, denoiser)(num_layers=1)
    linears = {name for name, layer in network.named_modules() if type(layer) is torch.nn.Linear}
    in_blocks = {name for name in linears if "transformer_blocks." in name}
    assert {name.split(".", 2)[2] for name in in_blocks - suitable_linears(network).keys()} == exact
    assert suitable_linears(network).keys() <= in_blocks


def test_attention_of_one_checkpoint_is_not_that_of_others(spec: Spec, job: Job) -> None:
    others = draw(load(spec("klein")), job("klein"))
    chosen = load(spec("klein"), attention="_native_math")
    assert AttentionBackendName("_native_math") in {
        getattr(getattr(module, "processor", None), "_attention_backend", None) for module in chosen.denoiser.modules()
    }
    assert np.abs(draw(chosen, job("klein")).astype(int) - others).max() <= 1
    assert np.array_equal(draw(load(spec("klein")), job("klein")), others)
    assert _AttentionBackendRegistry.get_active_backend()[0] == AttentionBackendName.NATIVE


@pytest.mark.parametrize("name", ["klein", "sd3", "sd"])
def test_fused_projections_draw_the_same_image_in_the_same_memory(name: str, spec: Spec, job: Job) -> None:
    checkpoint = load(spec(name))
    plain, before = draw(checkpoint, job(name)), checkpoint.weights_bytes
    fuse_projections(checkpoint.denoiser)
    assert any(hasattr(module, "to_qkv") for module in checkpoint.denoiser.modules())
    assert np.abs(draw(checkpoint, job(name)).astype(int) - plain).max() <= 2
    assert checkpoint.weights_bytes == before


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other at every operation take minutes where others want the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.nightly
@pytest.mark.usefixtures("one_thread")
async def test_compiled_checkpoints_compile_nothing_more_after_warmup(
    spec: Spec, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes are counted with dynamo; the backend that runs the graphs does not matter."""

    def compile_denoiser(denoiser: Any) -> None:
        denoiser.forward = torch.compile(denoiser.forward, dynamic=True, backend="eager")

    monkeypatch.setattr("pipelines.images.loading.runtime_options.compile_denoiser", compile_denoiser)
    torch._dynamo.reset()
    compiled = replace(spec("sd3"), runtime=Runtime(compile=True, max_batch=4), refined=True)
    engine = ImageEngine(DEVICE)
    await engine.prepare(compiled)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0
    for fields in ({"n": 2}, {"n": 4}, {"width_px": 80}, {"width_px": 160, "height_px": 96}):
        ended = [event async for event in engine.submit(job("sd3", checkpoint=compiled, **fields))][-1]
        assert isinstance(ended, Finished)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, fields


async def test_the_thread_that_compiles_may_compile_as_many_shapes_as_are_served(
    spec: Spec, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch keeps settings by thread: one that the loader has set says nothing to a run."""
    limits: list[int] = []

    def compile_denoiser(denoiser: Any) -> None:
        denoiser.register_forward_pre_hook(lambda *_: limits.append(torch._dynamo.config.recompile_limit))

    monkeypatch.setattr("pipelines.images.loading.runtime_options.compile_denoiser", compile_denoiser)
    compiled = job("sd", checkpoint=replace(spec("sd"), runtime=Runtime(compile=True)))
    assert isinstance([event async for event in ImageEngine(DEVICE).submit(compiled)][-1], Finished)
    assert limits
    assert set(limits) == {RECOMPILE_LIMIT}


@pytest.mark.nightly
async def test_runs_of_a_checkpoint_whose_components_take_turns_come_one_after_another(
    spec: Spec, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.images.loading.runtime_options._offload", lambda *_: None)
    engine = ImageEngine(DEVICE)
    ends: list[str] = []
    runtime = Runtime(offload="model", max_batch=1)

    async def run(name: str, steps: int) -> None:
        offloaded = job("klein", id=name, steps=steps, checkpoint=replace(spec("klein"), runtime=runtime))
        async for event in engine.submit(offloaded):
            if isinstance(event, Progress) and name == "long" and event.step == 2:
                short.set_result(asyncio.create_task(run("short", 2)))
        ends.append(name)

    short: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()
    await run("long", 30)
    await (await short)
    assert ends == ["long", "short"]


@of_a_cpu
def test_auto_takes_the_plain_settings_without_a_gpu_and_says_so(spec: Spec) -> None:
    chosen = load(spec("klein"), auto=True)
    assert chosen.runtime == Runtime()
    assert chosen.notes == ("runtime auto: no GPU: the plain settings",)


async def test_memory_that_nothing_uses_goes_back_once_the_engine_is_idle(
    spec: Spec, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(checkpoint_cache, "IDLE_S", 0)
    monkeypatch.setattr(checkpoint_cache, "free_memory", lambda _: loop.call_soon_threadsafe(freed.set))
    engine = ImageEngine(DEVICE)
    await engine.load(spec("klein"))
    freed.clear()
    assert isinstance([event async for event in engine.submit(job("klein"))][-1], Finished)
    await freed.wait()


def test_the_repeated_blocks_are_compiled(spec: Spec) -> None:
    compiled = load(spec("klein"), compile=True).denoiser
    assert any(module._compiled_call_impl is not None for module in compiled.modules())


@pytest.mark.parametrize(
    ("name", "runtime", "message"),
    [
        ("sd", {"cache": StepCache("first-block")}, "runtime.cache: UNet2DConditionModel has no step caching"),
        ("klein", {"cache": StepCache("taylorseer", threshold=0.1)}, "runtime.cache.threshold: taylorseer"),
        ("klein", {"cache": StepCache("magcache")}, "runtime.cache.mag_ratios"),
        pytest.param("sd", {"offload": "group"}, "runtime.offload: 'group' is for a GPU", marks=of_a_cpu),
        ("sd", {"quantize": "int8"}, "runtime.quantize: 'int8' needs torchao: .* -m pip install .* torchao$"),
        (
            "sd",
            {"quantize": "int4"},
            "runtime.quantize: 'int4' needs torchao and mslk-cuda: .* -m pip install .* torchao mslk-cuda$",
        ),
        ("klein", {"attention": "_flash_3_hub"}, "runtime.attention: '_flash_3_hub' would be downloaded"),
        ("klein", {"attention": "magic"}, "runtime.attention: .*magic.* must be one of"),
        ("klein", {"attention": "flash", "dtype": "bfloat16"}, "runtime.attention: .*flash-attn"),
        *(
            (
                "klein",
                {"attention": name, "dtype": "float32"},
                f"runtime.attention: '{name}' takes bfloat16 and float16",
            )
            for name in ("_native_cudnn", "flash", "_flash_3", "sage", "_sage_qk_int8_pv_fp16_triton")
        ),
        ("sd", {"attention": "native"}, "runtime.attention: the attention of UNet2DConditionModel takes no backend"),
        ("klein", {"compile": True, "quantize": "float8"}, "compile and quantize = 'float8' defeat each other"),
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


async def test_a_checkpoint_that_loads_and_does_not_draw_is_refused_and_leaves_memory(spec: Spec) -> None:
    told: list[CachedCheckpoints] = []
    engine = ImageEngine(DEVICE, on_cached_checkpoints=told.append)
    engine.unload_except([])
    odd = replace(spec("sd"), sampling=replace(spec("sd").sampling, scheduler="MagicScheduler"))
    with pytest.raises(CheckpointError, match="MagicScheduler"):
        await engine.prepare(odd)
    assert [each.device_bytes > 0 for each in told] == [True, False]


@pytest.mark.nightly
async def test_a_cache_that_breaks_on_a_checkpoint_is_found_in_warmup(spec: Spec) -> None:
    """Diffusers' hooks take this transformer and then fail on its second kind of block."""
    cached = replace(spec("klein"), runtime=Runtime(cache=StepCache("first-block", threshold=0.9)))
    with pytest.raises(CheckpointError, match="loads and does not draw"):
        await ImageEngine(DEVICE).prepare(cached)
