"""What is no image is refused wherever it arises, and leaves nothing behind for the calls after it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec, Failed, Finished, ImageJob, Preview, Runtime
from tests.engines.conftest import split_image
from tests.engines.device import DEVICE
from tests.engines.shared_passes import Passes, drawn_together
from tests.engines.test_families import family_spec
from tests.support.image_jobs import image_job, with_fields
from tests.support.tiny_families import make_family

pytestmark = pytest.mark.nightly

Change = Callable[[str, torch.Tensor], None]


def first_is(value: float, weight: str) -> Change:
    def change(name: str, tensor: torch.Tensor) -> None:
        if name.endswith(weight):
            tensor.view(-1)[0] = value

    return change


def spoil(spec: CheckpointSpec, folder: Path, part: str, change: Change) -> CheckpointSpec:
    """A copy of the checkpoint with a weight of one of its parts changed."""
    copied = Path(shutil.copytree(spec.path, folder / f"spoiled {part}"))
    spoil_file(next((copied / part).glob("*.safetensors")), change)
    return replace(spec, path=copied)


def spoil_file(file: Path, change: Change) -> Path:
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    for name, tensor in tensors.items():
        change(name, tensor)
    save_file(tensors, file, {"format": "pt"})
    return file


@pytest.fixture(scope="module")
def sd15(tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    """It has the codec that most checkpoints have."""
    folder = tmp_path_factory.mktemp("families")
    make_family("sd15", folder / "sd15")
    return replace(family_spec("sd15", folder, "img2img"), runtime=Runtime(dtype="float32"))


async def events(engine: ImageEngine, job: ImageJob) -> list[Any]:
    return [event async for event in engine.submit(job)]


async def last(engine: ImageEngine, job: ImageJob) -> Any:
    return (await events(engine, job))[-1]


SPOILED = {
    "NaN in the denoiser": ("unet", first_is(float("nan"), "conv_in.weight")),
    "infinite in the denoiser": ("unet", first_is(float("inf"), "conv_in.weight")),
    "NaN in the codec": ("vae", first_is(float("nan"), "decoder.conv_in.weight")),
    "infinite where colours are cut off": ("vae", first_is(float("inf"), "decoder.conv_out.bias")),
    "NaN in the text encoder": ("text_encoder", first_is(float("nan"), "final_layer_norm.weight")),
}


@pytest.mark.parametrize(("part", "change"), SPOILED.values(), ids=SPOILED)
async def test_a_checkpoint_that_draws_no_numbers_is_refused(
    part: str, change: Change, sd15: CheckpointSpec, tmp_path: Path
) -> None:
    """By warmup, and by each call to one that was warmed up before its memory was damaged."""
    spoiled = spoil(sd15, tmp_path, part, change)
    engine = ImageEngine(DEVICE)
    with pytest.raises(CheckpointError, match=r"loads and does not draw: its images are not numbers \(NaN or inf"):
        await engine.prepare(spoiled)
    assert (await last(engine, image_job(spoiled))).code == "checkpoint_failed"
    failed = await last(ImageEngine(DEVICE), image_job(spoiled))
    assert (failed.code, failed.param) == ("invalid_picture", None)
    assert "Nothing was charged. For the server's operator: it computes in float32 already" in failed.message


async def test_a_wider_dtype_is_named(sd15: CheckpointSpec, tmp_path: Path) -> None:
    spoiled = spoil(sd15, tmp_path, "unet", first_is(float("nan"), "conv_in.weight"))
    half = replace(spoiled, runtime=Runtime(dtype="bfloat16"))
    with pytest.raises(CheckpointError, match=r'runtime\.dtype = "float32" may help'):
        await ImageEngine(DEVICE).prepare(half)
    assert 'runtime.dtype = "float32" may help' in (await last(ImageEngine(DEVICE), image_job(half))).message


async def test_a_checkpoint_of_one_colour_is_refused(sd15: CheckpointSpec, tmp_path: Path) -> None:
    """All of the codec's last weights are 0, as of a tensor that was never filled."""

    def empty(name: str, tensor: torch.Tensor) -> None:
        if name == "decoder.conv_out.weight":
            tensor.zero_()

    with pytest.raises(CheckpointError, match="loads and does not draw: its images have one colour; its weights"):
        await ImageEngine(DEVICE).prepare(spoil(sd15, tmp_path, "vae", empty))


async def test_a_tile_of_no_numbers_does_not_pass_into_a_larger_image(sd15: CheckpointSpec, tmp_path: Path) -> None:
    """An image from text does not read the codec's encoder; the second pass and edits do, and are withdrawn."""
    spoiled = spoil(sd15, tmp_path, "vae", first_is(float("nan"), "encoder.conv_in.weight"))
    engine = ImageEngine(DEVICE)
    found = await engine.prepare(spoiled)
    assert (found.text, found.references, found.mask, found.second_pass) == (True, 0, False, False)
    assert {each.what for each in found.failed_checks} == {"a reference", "a mask", "a second pass"}
    assert all(each.why.startswith("its images are not numbers") for each in found.failed_checks)
    assert isinstance(await last(engine, image_job(spoiled)), Finished)
    larger = image_job(spoiled, id="larger", width_px=208, height_px=112)
    edit = image_job(spoiled, id="edit", references=(split_image(upright=True),))
    assert [(await last(engine, each)).code for each in (larger, edit)] == ["invalid_picture"] * 2


@pytest.fixture
def with_adapters(spec: Any, adapter: Path, tmp_path: Path) -> CheckpointSpec:
    """A folder with a good adapter, and one whose training diverged: its weights are numbers, and what it draws is not.
    Weights that are no numbers themselves are refused when they are loaded."""

    def overflow(name: str, tensor: torch.Tensor) -> None:
        tensor.mul_(1e38 if "lora_B" in name else 1e3)

    folder = tmp_path / "loras"
    folder.mkdir()
    shutil.copy(adapter, folder / "sketch.safetensors")
    diverged = Path(shutil.copy(adapter, folder / "diverged.safetensors"))
    spoil_file(diverged, overflow)
    return replace(spec("sd"), runtime=Runtime(lora_folder=folder, dtype="float32"))


async def test_an_adapter_of_no_numbers_is_named_and_leaves_previews_alone(
    with_adapters: CheckpointSpec, job: Any
) -> None:
    engine = ImageEngine(DEVICE)
    found = await engine.prepare(with_adapters)
    assert found.unsupported_adapters == ("diverged",)
    plain = job("sd", checkpoint=with_adapters, steps=6, previews=2)
    before = await events(engine, plain)
    for name, code in (("diverged", "invalid_picture"), ("sketch", None)):
        ended = await last(engine, with_fields(plain, id=name, loras=((name, 1.0),), previews=0))
        assert getattr(ended, "code", None) == code
        if isinstance(ended, Failed):
            assert ended.param == "loras"
            assert ended.message.endswith("Nothing was charged. Try it without the adapter 'diverged'.")
    after = await events(engine, replace(plain, id="after"))
    shown = [[event.image.data for event in run if isinstance(event, Preview)] for run in (before, after)]
    assert len(shown[0]) == len(shown[1]) == 2
    assert before[-1].images[0].data == after[-1].images[0].data
    resident = engine._cache.find(with_adapters)
    assert resident is not None
    rendered = resident.preview_map.render(torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(0)), 64, 64)
    assert rendered is not None
    assert np.ptp(rendered) > 0


async def test_passes_of_no_numbers_do_not_end_the_sharing_of_passes(
    with_adapters: CheckpointSpec, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pass that is shared is compared with passes alone, which shows nothing if those are NaN."""
    Passes(monkeypatch)  # limits by size alone
    engine = ImageEngine(DEVICE)
    jobs = [job("sd", checkpoint=with_adapters, id=f"{seed}", seed=seed, steps=4) for seed in (1, 2)]
    diverged = [with_fields(each, loras=(("diverged", 1.0),)) for each in jobs]
    assert [getattr(event, "code", None) for event in await drawn_together(engine, diverged)] == ["invalid_picture"] * 2
    merger = engine._cache.find(with_adapters).checkpoint.merger  # type: ignore[union-attr]
    assert merger is not None
    assert (merger._independent, merger.refused) == ({}, None)
    assert all(isinstance(event, Finished) and event.merged for event in await drawn_together(engine, jobs))


async def test_trials_of_adapters_leave_no_trace_in_the_preview_map(
    with_adapters: CheckpointSpec, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is updated as in a warmup without a folder of adapters, and by each image that shows that an adapter left
    nothing behind: those are drawn without one."""
    updates: list[PreviewMap] = []
    update = PreviewMap.update

    def counted(self: PreviewMap, *arguments: Any) -> None:
        updates.append(self)
        update(self, *arguments)

    monkeypatch.setattr(PreviewMap, "update", counted)
    counts = []
    for each in (replace(spec("sd"), runtime=Runtime(dtype="float32")), with_adapters):
        updates.clear()
        await ImageEngine(DEVICE).prepare(each)
        counts.append(len(updates))
    assert counts[1] - counts[0] == 1 + len(("sketch", "diverged"))
    assert counts[0] > 8


async def test_embeddings_that_are_not_numbers_are_made_anew(sd15: CheckpointSpec) -> None:
    """A fault of the moment, such as a flipped bit, is not kept for all later calls of its prompt."""
    checkpoint = load_checkpoint(sd15, DEVICE)
    pipeline = checkpoint.pipeline()
    arguments = {"prompt": "a boat", "device": DEVICE, "num_images_per_prompt": 1, "do_classifier_free_guidance": False}

    def spoil_output(_: object, __: object, output: Any) -> None:
        output.last_hidden_state.fill_(float("nan"))

    broken = checkpoint.components["text_encoder"].register_forward_hook(spoil_output)
    assert pipeline.encode_prompt(**arguments)[0].isnan().all()
    broken.remove()
    assert pipeline.encode_prompt(**arguments)[0].isfinite().all()
    again = pipeline.encode_prompt(**arguments)[0]
    assert torch.equal(again, pipeline.encode_prompt(**arguments)[0])
    assert len(checkpoint.prompts._entries) == 1


async def test_what_warmup_refuses_draws_nothing_until_it_passes(sd15: CheckpointSpec) -> None:
    """Each call loaded it again, and its image was sold without a check."""
    unfit = replace(sd15, conditioning="native")  # which its class does not have
    engine = ImageEngine(DEVICE)
    for _ in range(2):
        with pytest.raises(CheckpointError, match='write conditioning = "img2img"'):
            await engine.prepare(unfit)
        failed = await last(engine, image_job(unfit))
        assert (failed.code, 'write conditioning = "img2img"' in failed.detail) == ("checkpoint_failed", True)
    assert isinstance(await last(engine, image_job(sd15)), Finished)
