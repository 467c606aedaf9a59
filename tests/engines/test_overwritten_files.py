"""What is loaded stays as it was read, whatever happens to its files: written over in place, or cut short."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.chat.engine import ChatEngine
from pipelines.classify.engine import load_classifier
from pipelines.device import memory
from pipelines.device.memory import copy_mapped_weights
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.loading.adapter_loading import load_adapter
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.chat import ChatSpec
from pipelines.protocol.classify import ClassifierSpec
from pipelines.protocol.images import CheckpointSpec, Control, ControlInput, ImageJob, RawImage
from tests.engines.chat_jobs import Job, run, text
from tests.engines.device import DEVICE
from tests.engines.test_families import family_spec
from tests.engines.test_upscalers import spec_of
from tests.support.tiny_checkpoints import make_single_file
from tests.support.tiny_classifiers import make_text_classifier
from tests.support.tiny_families import make_family
from tests.support.tiny_families.controls import make_controlnet, make_image_encoder, make_ip_adapter
from tests.support.tiny_upscalers import make_upscaler

Spec = Callable[[str], CheckpointSpec]


def overwritten(path: Path) -> Iterator[None]:
    """Write over the weights of a folder or file in place, with numbers that are none, and then cut them off."""
    files = [path] if path.is_file() else list(path.rglob("*.safetensors"))
    assert files
    for file in files:
        with file.open("r+b") as opened:
            opened.write(b"\xff" * file.stat().st_size)
    yield
    for file in files:
        with file.open("r+b") as opened:
            opened.truncate(0)
    yield


def draw(checkpoint: Checkpoint, job: ImageJob) -> bytes:
    row = Row(replace(job, checkpoint=checkpoint.spec), 0, 0.0)
    return np.asarray(ImagePipeline(checkpoint, row, lambda _: None, PreviewMap()).generate()).tobytes()


def weights_of(module: torch.nn.Module) -> list[bytes]:
    both = (*module.parameters(), *module.buffers())
    return [weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() for weight in both]


@pytest.mark.parametrize("form", ["folder", "file", "parts"])
def test_images_come_out_the_same(form: str, spec: Spec, tmp_path: Path, job: Callable[..., ImageJob]) -> None:
    folder = Path(shutil.copytree(spec("sd").path, tmp_path / "copy"))
    own = replace(spec("sd"), path=folder)
    if form == "file":
        path, config = make_single_file(tmp_path / "single")
        own = replace(spec("sd"), path=path, config=config)
    if form == "parts":
        own = replace(spec("sd"), parts=(("vae", folder / "vae"), ("text_encoder", folder / "text_encoder")))
    checkpoint = load_checkpoint(own, DEVICE)
    before = draw(checkpoint, job("sd"))
    for _ in overwritten(folder if form == "parts" else own.path):
        assert draw(checkpoint, job("sd")) == before


def test_adapters_stay_as_they_were_read(spec: Spec, adapter: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(adapter, tmp_path / "ink.safetensors"))
    checkpoint = load_checkpoint(spec("sd"), DEVICE)
    load_adapter(checkpoint.pipeline(), file, "ink")
    before = weights_of(checkpoint.denoiser)
    for _ in overwritten(file):
        assert weights_of(checkpoint.denoiser) == before


def test_controls_stay_as_they_were_read(tmp_path: Path) -> None:
    make_family("sd15", tmp_path / "sd15")
    plain = family_spec("sd15", tmp_path, "img2img")
    denoiser = load_checkpoint(plain, DEVICE).denoiser
    encoder = make_image_encoder(tmp_path / "encoder")
    style = make_ip_adapter(denoiser, tmp_path / "style.safetensors")
    edges = make_controlnet(denoiser, tmp_path / "edges")
    own = (Control("style", "ip-adapter", style, image_encoder=encoder), Control("edges", "controlnet", edges))
    checkpoint = load_checkpoint(replace(plain, controls=own), DEVICE)
    map_ = RawImage(64, 64, "RGB", bytes(64 * 64 * 3))
    checkpoint.controls.activate(checkpoint.pipeline(), checkpoint.denoiser, [ControlInput("style", map_, 1.0)])
    modules = [checkpoint.denoiser, *checkpoint.controls.modules]
    before = [weights_of(module) for module in modules]
    for path in (style, edges, encoder):
        for _ in overwritten(path):
            assert [weights_of(module) for module in modules] == before


def test_an_upscaler_stays_as_it_was_read(tmp_path: Path) -> None:
    file = make_upscaler(tmp_path / "sharp.safetensors")
    network = load_checkpoint(spec_of(file), DEVICE).components["unet"]
    before = weights_of(network)
    for _ in overwritten(file):
        assert weights_of(network) == before


def test_a_classifier_scores_the_same(tmp_path: Path) -> None:
    folder = make_text_classifier(tmp_path / "blades")
    classifier = load_classifier(ClassifierSpec("blades", folder, "prompts"), DEVICE)
    before = classifier.score_text("a knife")
    for _ in overwritten(folder):
        assert classifier.score_text("a knife") == before


async def test_a_chat_writes_the_same(
    chat_spec: Callable[..., ChatSpec], chat_engine: ChatEngine, chat_job: Job, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(chat_spec("qwen").path, tmp_path / "copy"))
    own = replace(chat_spec("qwen"), path=folder)
    before = text(await run(chat_engine, chat_job(checkpoint=own)))
    for _ in overwritten(folder):
        assert text(await run(chat_engine, chat_job(checkpoint=own))) == before


def test_all_are_copied_where_the_system_does_not_say_what_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.Linear(2, 2)
    layer.other = layer.weight
    numbers, place = layer.weight.detach(), layer.weight.data_ptr()
    copy_mapped_weights([layer, None])
    assert layer.weight.data_ptr() == place, "it is mapped to no file"
    monkeypatch.setattr(memory, "_file_mappings", lambda: None)
    copy_mapped_weights([layer])
    assert layer.weight.data_ptr() != place
    assert layer.other is layer.weight
    assert torch.equal(layer.weight, numbers)
