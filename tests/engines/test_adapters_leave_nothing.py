"""After the last adapter a checkpoint is bit for bit what it was, whatever was in the folder; a file that is replaced
under its name is another adapter."""

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import init_empty_weights

from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.adapter_loading import takes_adapters
from pipelines.images.loading.base_state import base_modules, base_state, changed
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.loading.parts import LOAD_LOCK
from pipelines.images.scheduling.batching import Row
from pipelines.images.tasks import UnsupportedTask
from pipelines.protocol.images import CheckpointSpec, Failed, Finished, Runtime, SamplingDefaults
from tests.engines.device import DEVICE
from tests.support.image_jobs import image_job
from tests.support.tiny_adapters import PEFT, Naming, Tensors, layers_of, random_pairs, save
from tests.support.tiny_families import FAMILIES, NEEDED, make_family

QUICK = {
    *("sd15", "sd15-inpaint", "instruct-pix2pix", "lcm", "sdxl", "sdxl-turbo", "sdxl-inpaint", "sdxl-refiner", "sd3"),
    *("flux", "flux-schnell", "flux-fill", "qwen-image", "z-image", "lumina2", "chroma", "cogview4", "aura-flow"),
    *("klein", "klein-base"),
}


def family_spec(name: str, folder: Path) -> CheckpointSpec:
    """A tiny checkpoint, whose adapters are in loras/ beside it."""
    made = make_family(name, folder / name)
    (folder / "loras").mkdir()
    return CheckpointSpec(
        name=name, path=made, config=None, family="alpha", conditioning="img2img", max_references=1,
        native_area_px=64 * 64, max_area_px=96 * 96, sampling=SamplingDefaults(guidance=2.0),
        runtime=Runtime(lora_folder=folder / "loras"),
    )  # fmt: skip


@pytest.fixture
def flux(tmp_path: Path) -> CheckpointSpec:
    return family_spec("flux", tmp_path)


def folder_of(spec: CheckpointSpec) -> Path:
    assert spec.runtime.lora_folder is not None
    return spec.runtime.lora_folder


def digest(checkpoint: Checkpoint) -> str:
    """Of all weights of all components, by the names that they have without adapters."""
    found = hashlib.sha256()
    for part, module in sorted(checkpoint.components.items()):
        if isinstance(module, torch.nn.Module):
            for name, each in base_modules(module):
                for own, tensor in (*each.named_parameters(recurse=False), *each.named_buffers(recurse=False)):
                    found.update(f"{part}.{name}.{own} {tensor.dtype} {tuple(tensor.shape)}".encode())
                    found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def draw(checkpoint: Checkpoint, **fields: Any) -> np.ndarray[Any, Any]:
    job = image_job(checkpoint.spec, **fields)
    checkpoint.begin_run(job.sampling)
    return ImagePipeline(checkpoint, Row(job, 0, 0.0), lambda _: None, PreviewMap()).generate()


def adapter_of(checkpoint: Checkpoint, seed: int = 1) -> Tensors:
    """An adapter of the denoiser and, where the class takes one, of the first text encoder."""
    component = "unet" if "unet" in checkpoint.components else "transformer"
    tensors, _ = random_pairs(layers_of(checkpoint.denoiser), Naming(f"{component}.", PEFT, alpha=False), seed)
    if "text_encoder" in checkpoint.pipeline_class._lora_loadable_modules:
        encoder = layers_of(checkpoint.components["text_encoder"], ("q_proj", "k_proj", "v_proj", "out_proj"))
        tensors |= random_pairs(encoder, Naming("text_encoder.", PEFT, alpha=False), seed)[0]
    return tensors


def control_lora(checkpoint: Checkpoint) -> Tensors:
    """As FLUX.1-Canny-dev-lora: it reads an image beside the latents."""
    embedder = checkpoint.denoiser.x_embedder
    random = torch.Generator().manual_seed(9)
    down, up = (torch.randn(s, generator=random) for s in ((4, 2 * embedder.in_features), (embedder.out_features, 4)))
    wide = {"transformer.x_embedder.lora_A.weight": down, "transformer.x_embedder.lora_B.weight": up}
    return adapter_of(checkpoint) | wide


def norm_lora(checkpoint: Checkpoint) -> Tensors:
    norms = {
        f"transformer.{name}": weight.detach() + 1
        for name, weight in checkpoint.denoiser.named_parameters()
        if "norm_q" in name
    }
    return adapter_of(checkpoint) | norms


@pytest.mark.daily("sd15", "sdxl", "sd3", "flux", "qwen-image", "z-image", "klein")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in FAMILIES]
)
def test_the_base_is_what_it_was_after_the_last_adapter(name: str, tmp_path: Path) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    checkpoint = load_checkpoint(family_spec(name, tmp_path), DEVICE)
    if not takes_adapters(checkpoint.pipeline()):
        with pytest.raises(UnsupportedTask, match="its class takes no LoRA adapters"):
            checkpoint.begin_run(image_job(checkpoint.spec, loras=(("style", 1.0),)).sampling)
        pytest.skip(f"{checkpoint.pipeline_class.__name__} takes no adapters")
    folder = folder_of(checkpoint.spec)
    for number in (1, 2):
        save(adapter_of(checkpoint, number), folder / f"style-{number}.safetensors")
    before = digest(checkpoint)
    for loras in (("style-1",), ("style-1", "style-2"), ("style-2",), ()):
        checkpoint.begin_run(image_job(checkpoint.spec, loras=tuple((each, 0.7) for each in loras)).sampling)
    after = digest(checkpoint)
    print(f"{name:18} {checkpoint.pipeline_class.__name__:34} {before} {after}")
    assert after == before
    assert not checkpoint.pipeline().get_list_adapters()


def test_an_adapter_of_a_text_encoder_leaves_its_rotary_embeddings_exact(tmp_path: Path) -> None:
    spec = family_spec("fibo", tmp_path)
    checkpoint = load_checkpoint(replace(spec, runtime=replace(spec.runtime, dtype="bfloat16")), DEVICE)
    save(adapter_of(checkpoint), folder_of(spec) / "style.safetensors")
    before = digest(checkpoint)
    for loras in ((("style", 0.7),), ()):
        checkpoint.begin_run(image_job(spec, loras=loras).sampling)
    assert digest(checkpoint) == before


def test_a_denoiser_that_takes_no_adapter_refuses_all(tmp_path: Path) -> None:
    """Its pipeline's class has the call, and fails in it."""
    spec = family_spec("kandinsky3", tmp_path)
    checkpoint = load_checkpoint(spec, DEVICE)
    save(adapter_of(checkpoint), folder_of(spec) / "style.safetensors")
    with pytest.raises(UnsupportedTask, match="takes no LoRA adapters"):
        checkpoint.begin_run(image_job(spec, loras=(("style", 0.7),)).sampling)


@pytest.mark.parametrize(
    ("odd", "make"), [("a-control", control_lora), ("z-control", control_lora), ("a-norm", norm_lora)]
)
def test_an_odd_adapter_harms_no_other(flux: CheckpointSpec, odd: str, make: Callable[[Checkpoint], Tensors]) -> None:
    """Whichever of them comes first by name."""
    checkpoint = load_checkpoint(flux, DEVICE)
    save(adapter_of(checkpoint), folder_of(flux) / "plain.safetensors")
    save(make(checkpoint), folder_of(flux) / f"{odd}.safetensors")
    before, base, styled = digest(checkpoint), draw(checkpoint), draw(checkpoint, loras=(("plain", 1.0),))
    with pytest.raises(UnsupportedTask, match=r"replaces weights of the model \((x_embedder|norm_q)\)"):
        draw(checkpoint, loras=((odd, 1.0),))
    assert np.array_equal(draw(checkpoint), base)
    assert np.array_equal(draw(checkpoint, loras=(("plain", 1.0),)), styled)
    assert not np.array_equal(base, styled)
    draw(checkpoint)
    assert digest(checkpoint) == before


async def test_warmup_withdraws_an_odd_adapter_alone(flux: CheckpointSpec) -> None:
    made = load_checkpoint(flux, DEVICE)
    save(control_lora(made), folder_of(flux) / "a.safetensors")
    save(adapter_of(made), folder_of(flux) / "b.safetensors")
    save({name: torch.zeros_like(each) for name, each in adapter_of(made).items()}, folder_of(flux) / "c.safetensors")
    found = await ImageEngine(DEVICE).prepare(flux)
    assert found.unsupported_adapters == ("a", "c")
    assert [str(each) for each in found.failed_checks if "adapter" in each.what] == [
        "the adapter a: it replaces weights of the model (x_embedder): a control LoRA needs a control image",
        "the adapter c: it changes nothing",
    ]
    assert [str(fit) for fit in found.adapter_fits if fit.name == "b"] == [f"LoRA, {len(adapter_of(made)) // 2} layers"]


async def last(engine: ImageEngine, spec: CheckpointSpec, **fields: Any) -> Finished | Failed:
    ended = [event async for event in engine.submit(image_job(spec, **fields))][-1]
    assert isinstance(ended, Finished | Failed)
    return ended


@pytest.mark.nightly
async def test_weights_that_an_adapter_has_changed_unforeseen_are_loaded_anew(
    flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that writes over a weight while it loads is what no check of names can know."""
    made = load_checkpoint(flux, DEVICE)
    save(adapter_of(made), folder_of(flux) / "style.safetensors")
    save(adapter_of(made, 2), folder_of(flux) / "good.safetensors")
    original = made.pipeline_class.load_lora_weights
    harm = [True]

    def harmful(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        if harm[0]:
            self.transformer.proj_out.bias.data += 1

    monkeypatch.setattr(made.pipeline_class, "load_lora_weights", harmful)
    engine = ImageEngine(DEVICE)
    base = await last(engine, flux)
    failed = await last(engine, flux, loras=(("style", 1.0),))
    assert isinstance(base, Finished)
    assert isinstance(failed, Failed)
    assert "replaces weights of the model (proj_out)" in failed.message
    again = await last(engine, flux)
    assert isinstance(again, Finished)
    assert again.images[0].data == base.images[0].data
    harm[0] = False
    assert isinstance(await last(engine, flux, loras=(("good", 1.0),)), Finished)
    refused = await last(engine, flux, loras=(("style", 1.0),))
    assert isinstance(refused, Failed), "what is known of a file outlives the weights"
    assert "replaces weights" in refused.message


@pytest.mark.nightly
async def test_a_replaced_file_is_read_at_once_and_has_another_hash(flux: CheckpointSpec) -> None:
    made = load_checkpoint(flux, DEVICE)
    file = folder_of(flux) / "style.safetensors"
    loras = (("style", 1.0),)
    engine = ImageEngine(DEVICE)
    images, hashes = [], []
    for number in (1, 2, 1):
        save(adapter_of(made, number), file)
        for _ in range(2):
            drawn = await last(engine, flux, loras=loras)
            assert isinstance(drawn, Finished), drawn
            images.append(drawn.images[0].data)
            hashes.append(drawn.found["adapters"]["style"])
        assert hashes[-1] == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert hashes[0] == hashes[1] == hashes[4] == hashes[5] != hashes[2] == hashes[3]
    assert images[0] == images[1]
    assert images[2] == images[3]
    assert images[0] != images[2]
    before = hashes[0]
    os.utime(file, ns=(1, 1))
    touched = await last(engine, flux, loras=loras)
    assert isinstance(touched, Finished)
    assert touched.found["adapters"] == {"style": before}
    plain = await last(engine, flux)
    assert isinstance(plain, Finished)
    assert "adapters" not in plain.found


@pytest.mark.nightly
async def test_images_under_way_are_finished_with_the_file_that_they_began_with(flux: CheckpointSpec) -> None:
    """All images of a job that has begun, and none of one that comes after the file."""
    made = load_checkpoint(flux, DEVICE)
    file = folder_of(flux) / "style.safetensors"
    save(adapter_of(made, 1), file)
    loras = (("style", 1.0),)
    engine = ImageEngine(DEVICE)
    alone = await last(engine, flux, loras=loras, steps=4)
    events = engine.submit(image_job(flux, loras=loras, steps=4))
    async for event in events:
        if type(event).__name__ == "Progress":
            save(adapter_of(made, 2), file)
            after = image_job(flux, id="after", loras=loras, steps=4)
            later = [each async for each in engine.submit(after)][-1]
            break
    *_, first = [event async for event in events]
    assert isinstance(alone, Finished)
    assert isinstance(first, Finished)
    assert isinstance(later, Finished)
    assert first.images[0].data == alone.images[0].data
    assert first.found == alone.found
    assert later.images[0].data != alone.images[0].data
    assert later.found["adapters"]["style"] == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


@pytest.mark.nightly
async def test_adapters_that_were_not_tried_are_checked_when_a_call_names_them(flux: CheckpointSpec) -> None:
    made = load_checkpoint(flux, DEVICE)
    save(adapter_of(made), folder_of(flux) / "plain.safetensors")
    engine = ImageEngine(DEVICE)
    await engine.prepare(flux)
    base = await last(engine, flux)
    save(norm_lora(made), folder_of(flux) / "new.safetensors")
    failed = await last(engine, flux, loras=(("new", 1.0),))
    assert isinstance(failed, Failed)
    assert failed.param == "loras"
    assert "the adapter 'new' does not fit it: it replaces weights of the model (norm_q)" in failed.message
    again = await last(engine, flux)
    assert isinstance(base, Finished)
    assert isinstance(again, Finished)
    assert again.images[0].data == base.images[0].data
    assert isinstance(await last(engine, flux, loras=(("plain", 1.0),)), Finished)


def test_an_adapter_is_read_whole_while_another_checkpoint_is_built(flux: CheckpointSpec) -> None:
    """Libraries build models without memory: meanwhile every thread's new weights would have none."""
    checkpoint = load_checkpoint(flux, DEVICE)
    save(adapter_of(checkpoint), folder_of(flux) / "style.safetensors")
    drawn = threading.Event()

    def build() -> None:
        while not drawn.is_set():
            with LOAD_LOCK, init_empty_weights():
                torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(200)))

    builder = threading.Thread(target=build)
    builder.start()
    try:
        images = [draw(checkpoint, loras=loras) for loras in ((("style", 1.0),), ()) * 3]
    finally:
        drawn.set()
        builder.join()
    assert np.array_equal(images[0], images[4])
    assert not np.array_equal(images[0], images[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
@pytest.mark.parametrize("shape", [(300, 300), (123_457,), (131_072, 1), (70, 70, 3, 3)])
def test_the_digest_of_a_large_weight_sees_one_number(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    numbers = (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 100).to(dtype)
    if len(shape) == 4:
        numbers = numbers.contiguous(memory_format=torch.channels_last)
    model = torch.nn.Module()
    model.register_buffer("weight", numbers)
    before = base_state({"part": model})
    assert base_state({"part": model}) == before
    for place in (0, numbers.numel() // 2, numbers.numel() - 1):
        old = numbers.view(-1)[place].clone() if len(shape) < 4 else numbers[-1, -1, -1, -1].clone()
        target = numbers.view(-1)[place : place + 1] if len(shape) < 4 else numbers[-1:, -1:, -1:, -1:]
        target.copy_(torch.tensor(120.0).to(dtype))
        assert changed(before, base_state({"part": model})) == [""]
        target.copy_(old)
    assert base_state({"part": model}) == before
