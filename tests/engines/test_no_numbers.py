"""NaN is never sold: of each part of a checkpoint, in every dtype, quantization and way to compute."""

import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.runtime import check_conflicts
from pipelines.images.engine import ImageEngine
from pipelines.images.loading import fp8
from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec, Event, Failed, Finished, ImageJob, Runtime
from tests.engines.device import DEVICE
from tests.engines.test_families import family_spec
from tests.support.image_jobs import image_job
from tests.support.tiny_families import make_family

PACKAGES = {"nf4": ("bitsandbytes",), "int8": ("torchao",), "int4": ("torchao", "mslk")}
KERNEL, FORMULA = "fp8 by the kernel", "fp8 by torch"
QUANTIZED = ("none", "float8", FORMULA, KERNEL, *PACKAGES)
DTYPES = ("bfloat16", "float16", "float32")


@contextmanager
def spoiled(module: torch.nn.Module, tokens: slice) -> Iterator[None]:
    """Let a number of these tokens that a module returns be NaN."""

    def change(_: object, __: object, output: torch.Tensor) -> None:
        output[:, tokens, ..., 0] = float("nan")

    hook = module.register_forward_hook(change)
    try:
        yield
    finally:
        hook.remove()


ONE = slice(1, 2)
PARTS: dict[str, tuple[Callable[[Any], torch.nn.Module], slice]] = {
    "a token of the text encoder": (lambda components: components["text_encoder"].final_layer_norm, ONE),
    "a channel of the denoiser": (lambda components: components["unet"].conv_in, ONE),
    "a channel of the codec": (lambda components: components["vae"].decoder.conv_norm_out, ONE),
}


@pytest.fixture(scope="module")
def sd15(tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    folder = tmp_path_factory.mktemp("families")
    make_family("sd15", folder / "sd15")
    spec = family_spec("sd15", folder, "img2img")
    return replace(spec, sampling=replace(spec.sampling, guidance=1.0))


@pytest.fixture(scope="module")
def with_adapter(sd15: CheckpointSpec, tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    """With a folder of one adapter, whose training diverged: its weights are numbers, what it draws is not."""
    checkpoint = load_checkpoint(sd15, DEVICE)
    checkpoint.denoiser.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    folder = tmp_path_factory.mktemp("loras")
    checkpoint.pipeline_class.save_lora_weights(
        folder,
        unet_lora_layers=get_peft_model_state_dict(checkpoint.denoiser),
        weight_name="diverged.safetensors",
    )
    file = folder / "diverged.safetensors"
    tensors = {name: each * (1e38 if "lora_B" in name else 1e3) for name, each in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    return replace(sd15, runtime=Runtime(lora_folder=folder))


async def ended(engine: ImageEngine, job: ImageJob) -> Event:
    return [event async for event in engine.submit(job)][-1]


def choose_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantize the layers that read the prompt alone: a row takes Triton's interpreter milliseconds."""
    if DEVICE.type == "cpu" or importlib.util.find_spec("triton") is None:
        pytest.skip("no GPU, real or simulated, or no Triton")
    suitable = fp8.suitable_linears
    of_prompts = re.compile(r"attn2\.to_(k|v|kv)$")
    monkeypatch.setattr(
        fp8,
        "suitable_linears",
        lambda denoiser: {name: each for name, each in suitable(denoiser).items() if of_prompts.search(name)},
    )


def small(spec: CheckpointSpec, name: str, **changes: Any) -> ImageJob:
    return image_job(spec, id=name, width_px=32, height_px=32, steps=1, **changes)


@pytest.mark.parametrize("computed", ["eager", pytest.param("compiled", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("quantized", QUANTIZED)
@pytest.mark.parametrize("dtype", DTYPES)
async def test_nan_of_any_part_is_no_image(
    dtype: Any, quantized: str, computed: str, sd15: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing := [each for each in PACKAGES.get(quantized, ()) if importlib.util.find_spec(each) is None]:
        pytest.skip(f"{quantized} needs {' and '.join(missing)}")
    if quantized == KERNEL:
        choose_layers(monkeypatch)
    if quantized == FORMULA:
        monkeypatch.setattr(fp8, "_quantizer", lambda kind: (fp8._quantize, ""))
    quantize: Any = "fp8" if quantized in {KERNEL, FORMULA} else quantized
    runtime = Runtime(dtype=dtype, quantize=quantize, compile=computed == "compiled")
    try:
        check_conflicts(runtime)
    except CheckpointError:
        return
    engine, spec = ImageEngine(DEVICE), replace(sd15, runtime=runtime)
    components = (await engine.load(spec)).components
    parts = list(PARTS)[:1] if quantized == KERNEL else PARTS
    for number, name in enumerate(parts):
        find, tokens = PARTS[name]
        with spoiled(find(components), tokens):
            event = await ended(engine, small(spec, name, prompt=f"boat {number}"))
        assert isinstance(event, Failed), name
        assert event.code == "invalid_picture", name
        assert "Nothing was charged" in event.message
    if quantized != KERNEL:
        assert isinstance(await ended(engine, small(spec, "after")), Finished)
    engine.close()


@pytest.mark.parametrize("quantized", ["none", pytest.param("float8", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("dtype", DTYPES)
async def test_an_adapter_whose_training_diverged_is_named(
    dtype: Any, quantized: Any, with_adapter: CheckpointSpec
) -> None:
    """In float8 products there are none (pipelines/checkpoints/memory/runtime.py)."""
    engine = ImageEngine(DEVICE)
    spec = replace(with_adapter, runtime=replace(with_adapter.runtime, dtype=dtype, quantize=quantized))
    event = await ended(engine, small(spec, "adapted", loras=(("diverged", 1.0),)))
    assert isinstance(event, Failed)
    assert (event.code, event.param) == ("invalid_picture", "loras")
    assert "Nothing was charged. Try it without the adapter 'diverged'." in event.message
    assert isinstance(await ended(engine, small(spec, "plain")), Finished)
    engine.close()
