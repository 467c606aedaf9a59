"""Parts of one's own in place of a checkpoint's: autoencoders, text encoders and denoisers, from folders and files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.device_bytes import estimate_bytes
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.loading.shared_parts import SharedParts, origin_of
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.images import CheckpointSpec, SamplingDefaults
from tests.engines.device import DEVICE
from tests.support.image_jobs import image_job
from tests.support.tiny_checkpoints import make_single_file
from tests.support.tiny_families import make_family

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family("sdxl", tmp_path_factory.mktemp("families") / "sdxl")


@pytest.fixture(scope="module")
def other(sdxl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture, trained to other weights."""
    folder = tmp_path_factory.mktemp("families") / "other"
    shutil.copytree(sdxl, folder)
    for file in folder.rglob("*.safetensors"):
        save_file({name: weight * 0.7 for name, weight in load_file(file).items()}, file, {"format": "pt"})
    return folder


def spec_of(folder: Path, **parts: Path) -> CheckpointSpec:
    return CheckpointSpec(
        name="x", path=folder, config=None, family="alpha", conditioning="img2img", max_references=1,
        native_area_px=64 * 64, max_area_px=96 * 96, sampling=SamplingDefaults(guidance=2.0),
        parts=tuple(parts.items()),
    )  # fmt: skip


def draw(checkpoint: Checkpoint) -> Pixels:
    row = Row(image_job(checkpoint.spec), 0, 0.0)
    return ImagePipeline(checkpoint, row, lambda _: None, PreviewMap()).generate().astype(int)


def with_part_of(sdxl: Path, other: Path, component: str, made: Path) -> Pixels:
    """What a folder draws in which one part was exchanged by hand."""
    shutil.copytree(sdxl, made)
    shutil.rmtree(made / component)
    shutil.copytree(other / component, made / component)
    return draw(load_checkpoint(spec_of(made), DEVICE))


@pytest.mark.daily("folder-vae-*", "whole folder-text_encoder-*", "file-text_encoder_2-*", "file-denoiser-*")
@pytest.mark.parametrize(
    ("key", "component"),
    [("vae", "vae"), ("text_encoder", "text_encoder"), ("text_encoder_2", "text_encoder_2"), ("denoiser", "unet")],
)
@pytest.mark.parametrize("form", ["folder", "whole folder", "file"])
def test_a_part_draws_as_if_it_were_the_checkpoints_own(
    sdxl: Path, other: Path, tmp_path: Path, key: str, component: str, form: str
) -> None:
    path = {"folder": other / component, "whole folder": other}.get(form)
    if path is None:
        (file,) = (other / component).glob("*.safetensors")
        path = Path(shutil.copy(file, tmp_path / f"{key}.safetensors"))
    checkpoint = load_checkpoint(spec_of(sdxl, **{key: path}), DEVICE)
    drawn = draw(checkpoint)
    assert (drawn == with_part_of(sdxl, other, component, tmp_path / "by-hand")).all()
    assert (drawn != draw(load_checkpoint(spec_of(sdxl), DEVICE))).any()
    assert f"{component} is {path}, by its catalog file" in checkpoint.notes
    assert estimate_bytes(checkpoint.spec, checkpoint.components["unet"].dtype.itemsize) == pytest.approx(
        checkpoint.weights_bytes, rel=0.15
    )


@pytest.mark.parametrize("prefix", ["first_stage_model.", "vae."])
def test_an_autoencoder_that_was_cut_out_of_a_whole_file_is_taken(sdxl: Path, tmp_path: Path, prefix: str) -> None:
    (file,) = (sdxl / "vae").glob("*.safetensors")
    save_file({prefix + name: weight for name, weight in load_file(file).items()}, tmp_path / "vae.safetensors")
    drawn = draw(load_checkpoint(spec_of(sdxl, vae=tmp_path / "vae.safetensors"), DEVICE))
    assert (drawn == draw(load_checkpoint(spec_of(sdxl), DEVICE))).all()


def test_a_text_encoder_of_float8_with_scales_is_multiplied_out(sdxl: Path, tmp_path: Path) -> None:
    (file,) = (sdxl / "text_encoder").glob("*.safetensors")
    saved = {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    for name, weight in load_file(file).items():
        saved[name] = weight
        if name.endswith("proj.weight") and weight.dim() == 2:
            scale = weight.abs().max() / 448
            saved |= {name: (weight / scale).to(torch.float8_e4m3fn), name.replace(".weight", ".scale_weight"): scale}
    save_file(saved, tmp_path / "clip_l.safetensors")
    drawn = draw(load_checkpoint(spec_of(sdxl, text_encoder=tmp_path / "clip_l.safetensors"), DEVICE))
    assert np.abs(drawn - draw(load_checkpoint(spec_of(sdxl), DEVICE))).mean() < 3


def test_a_tiny_autoencoder_takes_the_place_of_the_large_one(sdxl: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = diffusers.AutoencoderKL.load_config(sdxl / "vae")
    doublings = len(config["block_out_channels"]) - 1
    tiny = diffusers.AutoencoderTiny(
        encoder_block_out_channels=(8,) * (doublings + 1), decoder_block_out_channels=(8,) * (doublings + 1),
        num_encoder_blocks=(1,) * (doublings + 1), num_decoder_blocks=(1,) * (doublings + 1),
    )  # fmt: skip
    tiny.save_pretrained(tmp_path / "taesdxl")
    checkpoint = load_checkpoint(spec_of(sdxl, vae=tmp_path / "taesdxl"), DEVICE)
    assert type(checkpoint.components["vae"]).__name__ == "AutoencoderTiny"
    drawn, usual = draw(checkpoint), draw(load_checkpoint(spec_of(sdxl), DEVICE))
    assert drawn.shape == usual.shape
    assert drawn.std() > 0
    assert (drawn != usual).any()


def test_other_checkpoints_of_the_folder_keep_their_own_parts(sdxl: Path, other: Path) -> None:
    shared = SharedParts()
    own = load_checkpoint(spec_of(sdxl, vae=other / "vae"), DEVICE, shared=shared)
    plain = load_checkpoint(spec_of(sdxl), DEVICE, shared=shared)
    again = load_checkpoint(spec_of(sdxl, vae=other / "vae"), DEVICE, shared=shared)
    assert own.components["text_encoder"] is plain.components["text_encoder"] is again.components["text_encoder"]
    assert plain.components["vae"] is not own.components["vae"]
    assert again.components["vae"] is not plain.components["vae"]
    torch.testing.assert_close(
        plain.components["vae"].decoder.conv_in.weight * 0.7, own.components["vae"].decoder.conv_in.weight
    )


def test_parts_that_are_replaced_while_they_load_are_not_shared(sdxl: Path, tmp_path: Path) -> None:
    shutil.copytree(sdxl, tmp_path / "sdxl")
    spec, shared = spec_of(tmp_path / "sdxl"), SharedParts()
    origin = origin_of(spec)
    components = load_checkpoint(spec, DEVICE).components
    shutil.copy2(sdxl / "vae" / "config.json", tmp_path / "sdxl" / "vae" / "config.json")  # as old as it was
    shared.keep(spec, origin, torch.float32, DEVICE, components)
    assert shared.find(spec, origin, torch.float32, DEVICE)
    assert not shared.find(spec, origin_of(spec), torch.float32, DEVICE)


@pytest.mark.parametrize(
    ("key", "make", "message"),
    [
        ("vae", lambda folder: folder / "gone", "vae: .*gone: there is no such folder or file"),
        ("vae", lambda folder: folder / "text_encoder" / "model.safetensors", "vae: .*a text encoder alone"),
        ("text_encoder", lambda folder: folder / "vae" / "diffusion_pytorch_model.safetensors", "a VAE alone"),
        ("text_encoder_3", lambda folder: folder / "text_encoder", "StableDiffusionXLPipeline has no text_encoder_3"),
        ("vae", lambda folder: folder / "model_index.json", "neither a folder nor a .safetensors file"),
        ("vae", lambda folder: folder / "tokenizer", "config.json: missing"),
        ("vae", lambda folder: folder / "text_encoder", "vae: .*a text encoder alone"),
        ("vae", lambda folder: folder / "unet", "vae: .*a denoiser alone"),
        ("denoiser", lambda folder: folder / "vae", "denoiser: .*a VAE alone"),
    ],
)  # fmt: skip
def test_what_can_not_be_the_part_is_refused_with_the_key(sdxl: Path, key: str, make: object, message: str) -> None:
    spec = spec_of(sdxl, **{key: make(sdxl)})  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(spec, DEVICE)
    with pytest.raises(CheckpointError, match=message):
        estimate_bytes(spec, 4)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("vae", "scaling_factor", 1.5305),
        ("vae", "shift_factor", 0.0609),
        ("vae", "latent_channels", 16),
        ("text_encoder", "hidden_size", 768),
        ("unet", "cross_attention_dim", 768),
    ],
)
def test_a_part_that_would_draw_something_else_is_refused(
    sdxl: Path, tmp_path: Path, part: str, key: str, value: float
) -> None:
    shutil.copytree(sdxl / part, tmp_path / "part")
    config = json.loads((sdxl / part / "config.json").read_text())
    (tmp_path / "part" / "config.json").write_text(json.dumps({**config, key: value}))
    spec = spec_of(sdxl, **{"denoiser" if part == "unet" else part: tmp_path / "part"})
    with pytest.raises(
        CheckpointError, match=rf"its {key} is {value}, and that of .*/{part} .*: it is of another kind"
    ):
        estimate_bytes(spec, 4)


def test_a_denoiser_of_another_class_is_named(sdxl: Path, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "config.json").write_text('{"_class_name": "FluxTransformer2DModel"}')
    with pytest.raises(CheckpointError, match="a FluxTransformer2DModel, and the pipeline draws with a UNet2DCond"):
        estimate_bytes(spec_of(sdxl, denoiser=tmp_path / "part"), 4)


def test_an_autoencoder_of_other_latents_is_refused(sdxl: Path, tmp_path: Path) -> None:
    (file,) = (sdxl / "vae").glob("*.safetensors")
    weights = {name: weight for name, weight in load_file(file).items() if "mid_block" not in name}
    save_file(weights, tmp_path / "part.safetensors")
    with pytest.raises(CheckpointError, match=r"vae: \d+ weights are not in its files"):
        load_checkpoint(spec_of(sdxl, vae=tmp_path / "part.safetensors"), DEVICE)


def test_a_whole_file_is_drawn_with_parts_of_ones_own(tmp_path: Path) -> None:
    file, config = make_single_file(tmp_path / "whole", keep_weights=True)
    plain = replace(spec_of(file), config=config)
    shutil.copytree(config / "vae", tmp_path / "vae")
    (weights,) = (tmp_path / "vae").glob("*.safetensors")
    save_file({name: weight * 0.7 for name, weight in load_file(weights).items()}, weights, {"format": "pt"})
    drawn = draw(load_checkpoint(replace(plain, parts=(("vae", tmp_path / "vae"),)), DEVICE))
    by_hand = load_checkpoint(plain, DEVICE)
    vae = by_hand.components["vae"]
    vae.load_state_dict({name: weight * 0.7 for name, weight in vae.state_dict().items()})
    assert (drawn != draw(load_checkpoint(plain, DEVICE))).any()
    assert np.abs(drawn - draw(by_hand)).max() <= (1 if DEVICE.type == "cpu" else 10)
