"""ControlNets and IP-Adapters: what they change, beside whom they are drawn, and what warmup says of them."""

import asyncio
import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.folder import read_json
from pipelines.checkpoints.folder.own_parts import why_it_does_not_fit
from pipelines.checkpoints.memory.device_bytes import control_bytes, estimate_bytes
from pipelines.device.memory import compute_dtype
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.load import load_checkpoint
from pipelines.protocol.images import CheckpointSpec, Control, ControlInput, Failed, Finished, ImageJob, Runtime
from tests.engines.conftest import left_half, plain_image, split_image
from tests.engines.device import DEVICE
from tests.engines.shared_passes import difference, drawn, drawn_together, last_event
from tests.engines.test_families import family_spec
from tests.support.image_jobs import image_job
from tests.support.tiny_families import FAMILIES, make_family
from tests.support.tiny_families.controls import (
    in_published_order,
    make_controlnet,
    make_image_encoder,
    make_ip_adapter,
    make_t2i_adapter,
    make_two_encoders,
)

UPRIGHT, ACROSS = split_image(upright=True), split_image(upright=False)


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CheckpointSpec]:
    """The spec of a tiny checkpoint with two ControlNets and an IP-Adapter."""
    made: dict[str, CheckpointSpec] = {}

    def make(name: str) -> CheckpointSpec:
        if name not in made:
            folder = tmp_path_factory.mktemp("controls")
            make_family(name, folder / name)
            spec = family_spec(name, folder, "img2img")
            denoiser = load_checkpoint(spec, DEVICE).denoiser
            encoder = make_image_encoder(folder / "encoder")
            controls = [Control("edges", "controlnet", make_controlnet(denoiser, folder / "edges"), "canny")]
            controls += [Control("depth", "controlnet", make_controlnet(denoiser, folder / "depth", 9), "depth")]
            if name != "sd3":
                file = make_ip_adapter(denoiser, folder / "ip" / "style.safetensors")
                controls += [Control("style", "ip-adapter", file, image_encoder=encoder)]
            made[name] = replace(spec, controls=tuple(controls))
        return made[name]

    return make


def controlled_job(spec: CheckpointSpec, *names: str, strength: float = 1.0, **fields: object) -> ImageJob:
    image = fields.pop("image", UPRIGHT)
    inputs = tuple(ControlInput(name, image, strength) for name in names)  # type: ignore[arg-type]
    return image_job(spec, id="-".join((*names, str(fields.get("seed", 0)))), controls=inputs, **fields)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "nets_with", "adapters_with"),
    [
        ("sd15", ("text", "image", "mask"), ("text", "image", "mask")),
        pytest.param("sdxl", ("text", "image", "mask"), ("text", "image", "mask"), marks=pytest.mark.nightly),
        pytest.param("flux", ("text", "image", "mask"), ("text", "image", "mask"), marks=pytest.mark.nightly),
        # its class for masks takes ControlNets that are made for them alone
        pytest.param("sd3", ("text",), (), marks=pytest.mark.nightly),
    ],
)
async def test_warmup_finds_what_controls_work_with(
    controlled: Callable[[str], CheckpointSpec], name: str, nets_with: tuple[str, ...], adapters_with: tuple[str, ...]
) -> None:
    found = await ImageEngine(DEVICE).prepare(controlled(name))
    assert [each.what for each in found.failed_checks] == (["the control edges with mask"] if name == "sd3" else [])
    assert (found.controlnets_with, found.ip_adapters_with) == (nets_with, adapters_with)
    assert (found.controlnets_at_once, found.unsupported_controls) == (2, ())


@pytest.mark.daily("sd15-names0")
@pytest.mark.parametrize("names", [("edges",), ("edges", "depth"), ("style",), ("edges", "style")])
@pytest.mark.parametrize("name", ["sd15", pytest.param("flux", marks=pytest.mark.nightly)])
async def test_controlled_images_share_passes_and_are_what_they_are_alone(
    controlled: Callable[[str], CheckpointSpec], name: str, names: tuple[str, ...]
) -> None:
    """Each has a map and a strength of its own."""
    spec = controlled(name)
    engine = ImageEngine(DEVICE)  # it has measured nothing, so two may share a pass
    jobs = [
        controlled_job(spec, *names, seed=seed, image=image, prompt="a" * seed)
        for seed, image in ((1, UPRIGHT), (2, ACROSS))
    ]
    events = await drawn_together(engine, jobs)
    assert all(isinstance(event, Finished) and event.merged for event in events)
    alone = [await drawn(engine, job) for job in jobs]
    assert all(difference(event, images) <= 2 for event, images in zip(events, alone, strict=True))
    assert difference(await last_event(engine, controlled_job(spec, seed=1)), alone[0]) > 2, "they change nothing"


@pytest.mark.skipif(DEVICE.type == "cpu", reason="the host is the device")
@pytest.mark.parametrize("offload", ["encoders", "model", "group"])
@pytest.mark.parametrize("name", ["sd15", "flux"])
async def test_controls_draw_alike_while_weights_wait_on_the_host(
    controlled: Callable[[str], CheckpointSpec], name: str, offload: Any
) -> None:
    spec = controlled(name)
    engine, waiting = ImageEngine(DEVICE), replace(spec, runtime=Runtime(offload=offload))
    for kinds in (("edges",), ("style",), (), ("edges", "style")):
        expected = await drawn(ImageEngine(DEVICE), controlled_job(spec, *kinds, seed=1))
        assert difference(await last_event(engine, controlled_job(waiting, *kinds, seed=1)), expected) == 0


async def test_t2i_adapters_follow_maps_from_a_prompt_alone(tmp_path: Path) -> None:
    """Of colours and of levels of grey, one or two at once, in shared passes."""
    in_published_order(FAMILIES["sd15"]()).save_pretrained(tmp_path / "sd15")
    spec = family_spec("sd15", tmp_path, "img2img")
    controls = [Control("sketch", "t2i-adapter", make_t2i_adapter(tmp_path / "sketch", in_channels=1), "sketch")]
    controls += [Control("depth", "t2i-adapter", make_t2i_adapter(tmp_path / "depth", 5), "depth")]
    denoiser = load_checkpoint(spec, DEVICE).denoiser
    controls += [Control("edges", "controlnet", make_controlnet(denoiser, tmp_path / "edges"))]
    spec = replace(spec, controls=tuple(controls))
    engine = ImageEngine(DEVICE)
    found = await engine.prepare(spec)
    assert (found.t2i_adapters_with, found.t2i_adapters_at_once) == (("text",), 2)
    assert (found.controlnets_with, found.controlnets_at_once) == (("text", "image", "mask"), 1)
    assert found.failed_checks == ()
    plain = await last_event(engine, controlled_job(spec, seed=1))
    for names in (("sketch",), ("depth",), ("sketch", "depth")):
        jobs = [controlled_job(spec, *names, seed=1), controlled_job(spec, *names, seed=2, image=ACROSS)]
        events = await drawn_together(engine, jobs)
        alone = [await drawn(engine, job) for job in jobs]
        assert all(isinstance(event, Finished) for event in events)
        assert all(difference(event, images) <= 2 for event, images in zip(events, alone, strict=True))
        assert difference(plain, alone[0]) > 2, "it changes nothing"
    mixed = await last_event(engine, controlled_job(spec, "sketch", "edges"))
    assert isinstance(mixed, Failed)
    assert (mixed.code, mixed.param) == ("unsupported", "controls")


async def test_a_checkpoint_of_maps_draws_from_its_own_in_both_passes(tmp_path: Path) -> None:
    make_family("flux-control", tmp_path / "flux-control")
    spec = family_spec("flux-control", tmp_path, "img2img")
    engine = ImageEngine(DEVICE)
    found = await engine.prepare(spec)
    assert (found.names, found.second_pass) == (["text", "image", "mask", "guidance", "steps"], True)
    assert found.controlled_with("map") == ("text", "image", "mask")
    large = {"width_px": 160, "height_px": 64}
    for more in ({}, large):
        jobs = [controlled_job(spec, "map", image=image, **more) for image in (UPRIGHT, ACROSS)]
        one, other = [await drawn(engine, job) for job in jobs]
        assert difference(await last_event(engine, controlled_job(spec, "map", **more)), one) <= 2
        assert difference(await last_event(engine, controlled_job(spec, "map", **more)), other) > 2
    without = await last_event(engine, image_job(spec))
    assert isinstance(without, Failed)
    assert (without.code, without.param) == ("unsupported", "controls")


async def test_an_image_without_an_ip_adapter_is_what_it_was_before_one(
    controlled: Callable[[str], CheckpointSpec],
) -> None:
    """It is state of the weights: those with others are drawn one after another, in any order."""
    spec = controlled("sd15")
    engine = ImageEngine(DEVICE)
    jobs = [
        controlled_job(spec, seed=1, steps=5),
        controlled_job(spec, "style", seed=2, steps=5),
        replace(controlled_job(spec, "style", seed=2, steps=5, strength=0.5), id="weak"),
        controlled_job(spec, "edges", seed=3, steps=5),
    ]
    alone = [await drawn(engine, job) for job in (jobs[0], jobs[3], jobs[1], jobs[2])]
    events = await drawn_in_any_order(engine, jobs)
    for event, images in zip(events, (alone[0], alone[2], alone[3], alone[1]), strict=True):
        assert difference(event, images) <= 2
    assert difference(events[1], alone[3]) > 2, "the strength changes nothing"


@pytest.mark.nightly
async def test_a_replaced_ip_adapter_is_read_at_once_and_hashes_are_told(
    controlled: Callable[[str], CheckpointSpec], tmp_path: Path
) -> None:
    spec = controlled("sd15")
    denoiser = load_checkpoint(spec, DEVICE).denoiser
    edges, _, style = spec.controls
    file = tmp_path / "style.safetensors"
    spec = replace(spec, controls=(edges, replace(style, path=file)))
    engine = ImageEngine(DEVICE)
    images, found = [], []
    for seed in (3, 4, 3):
        make_ip_adapter(denoiser, file, seed)
        event = await last_event(engine, controlled_job(spec, "edges", "style", seed=1))
        assert isinstance(event, Finished), event
        images.append(event.images[0].data)
        found.append(event.found["control_files"])
        assert found[-1]["style"] == sha256(file)
    assert found[0]["edges"] == sha256(edges.path / "diffusion_pytorch_model.safetensors")
    assert found[0] == found[2] != found[1]
    assert images[0] == images[2] != images[1]


def sha256(file: Path) -> str:
    return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


async def drawn_in_any_order(engine: ImageEngine, jobs: list[ImageJob]) -> list[object]:
    return list(await asyncio.gather(*(last_event(engine, job) for job in jobs)))


@pytest.mark.daily("mask")
@pytest.mark.parametrize("start", ["reference", "mask", "two passes"])
async def test_controls_go_with_references_masks_and_second_passes(
    controlled: Callable[[str], CheckpointSpec], start: str
) -> None:
    fields: dict[str, dict[str, object]] = {
        "reference": {"references": (plain_image(),), "strength": 0.9},
        "mask": {"references": (plain_image(),), "mask": left_half()},
        "two passes": {"width_px": 160, "height_px": 96},
    }
    engine, spec = ImageEngine(DEVICE), controlled("sd15")
    both = controlled_job(spec, "edges", "style", seed=1, **fields[start])
    event = await last_event(engine, both)
    assert isinstance(event, Finished), event
    plain = await last_event(engine, replace(both, controls=(), id="plain"))
    assert isinstance(plain, Finished)
    assert event.images[0].data != plain.images[0].data
    assert (event.images[0].width_px, event.images[0].height_px) == (both.width_px, both.height_px)


async def test_what_a_control_does_not_work_with_is_refused_by_field(
    controlled: Callable[[str], CheckpointSpec],
) -> None:
    """SD 3 has no class for references with a ControlNet."""
    job = controlled_job(controlled("sd3"), "edges", references=(plain_image(),), strength=0.9)
    event = await last_event(ImageEngine(DEVICE), job)
    assert isinstance(event, Failed)
    assert (event.code, event.param) == ("unsupported", "controls")


async def test_an_ip_adapter_for_faces_is_refused_before_it_changes_the_denoiser(
    controlled: Callable[[str], CheckpointSpec], tmp_path: Path
) -> None:
    """Its loader would leave LoRA layers in there, also for images without it, and where its own images fail."""
    spec = controlled("sd15")
    style = next(each for each in spec.controls if each.kind == "ip-adapter")
    width = load_checkpoint(replace(spec, controls=()), DEVICE).denoiser.down_blocks[-1].attentions[0].inner_dim
    factors = {
        f"ip_adapter.0.to_{each}_lora.{way}.weight": torch.ones((4, width) if way == "down" else (width, 4))
        for each in ("q", "k", "v", "out")
        for way in ("down", "up")
    }
    file = tmp_path / "faceid.safetensors"
    save_file({**load_file(style.path), **factors}, file)
    with pytest.raises(CheckpointError, match=r"ip_adapters: .*: an IP-Adapter for faces \(FaceID\)"):
        await ImageEngine(DEVICE).prepare(replace(spec, controls=(replace(style, path=file),)))
    engine = ImageEngine(DEVICE)
    plain = await drawn(engine, controlled_job(spec, seed=1))
    save_file(load_file(style.path), file)
    spec = replace(spec, controls=(replace(style, path=file),))
    await drawn(engine, controlled_job(spec, "style", seed=1))
    save_file({**load_file(style.path), **factors}, file)  # while it is served
    assert isinstance(await last_event(engine, controlled_job(spec, "style", seed=1)), Failed)
    assert difference(await last_event(engine, controlled_job(spec, seed=1)), plain) == 0


@pytest.mark.parametrize(
    ("kind", "make", "message"),
    [
        ("controlnet", lambda folder: folder / "gone", "controlnets: .*gone: there is no such folder"),
        ("controlnet", lambda folder: folder / "sd15", "sd15: a whole checkpoint: name the folder of one network"),
        ("controlnet", lambda folder: folder / "ip" / "style.safetensors", "a file: name a diffusers folder"),
        ("controlnet", lambda folder: pickled(folder / "edges"), "no weights but diffusion_pytorch_model.bin"),
        ("ip-adapter", lambda folder: folder / "ip", "ip_adapters: .*ip: a folder: name the .safetensors file"),
        ("ip-adapter", lambda folder: folder / "edges" / "diffusion_pytorch_model.safetensors", "a ControlNet"),
    ],
)  # fmt: skip
def test_files_that_are_no_such_control_are_named_with_the_key(
    controlled: Callable[[str], CheckpointSpec], tmp_path: Path, kind: Any, make: Any, message: str
) -> None:
    spec = controlled("sd15")
    folder = Path(shutil.copytree(spec.path.parent, tmp_path / "copy"))
    control = Control("x", kind, make(folder), image_encoder=folder / "encoder" if kind == "ip-adapter" else None)
    with pytest.raises(CheckpointError, match=message):
        estimate_bytes(replace(spec, controls=(control,)), 4)


def pickled(folder: Path) -> Path:
    (folder / "diffusion_pytorch_model.safetensors").rename(folder / "diffusion_pytorch_model.bin")
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cross_attention_dim": 2048}, "its cross_attention_dim is 2048, and that of .*unet 32"),
        ({"_class_name": "ControlNetUnionModel"}, "it is for several kinds of maps: name the one"),
        ({"cross_attention_dim": None, "joint_attention_dim": 4096}, "for another kind of checkpoint"),
    ],
)
def test_a_control_of_another_kind_of_checkpoint_is_told_by_its_config(
    controlled: Callable[[str], CheckpointSpec], change: dict[str, Any], message: str
) -> None:
    spec = controlled("sd15")
    unet, edges = spec.path / "unet", spec.path.parent / "edges"
    config = read_json(edges / "config.json") | change
    reason = why_it_does_not_fit(spec.controls[0], config, read_json(unet / "config.json"), unet)
    assert reason is not None
    assert re.search(message, reason)


@pytest.mark.nightly
async def test_controls_of_another_family_are_withdrawn_or_refused(
    controlled: Callable[[str], CheckpointSpec], tmp_path: Path
) -> None:
    sd15, flux = controlled("sd15"), controlled("flux")
    mixed = replace(sd15, controls=(sd15.controls[0], replace(flux.controls[0], name="wrong")))
    found = await ImageEngine(DEVICE).prepare(mixed)
    assert found.unsupported_controls == ("wrong",)
    assert any(failed_checks.what == "the control wrong" for failed_checks in found.failed_checks)
    with pytest.raises(CheckpointError, match="none of its controls works with it: edges: "):
        await ImageEngine(DEVICE).prepare(replace(sd15, controls=flux.controls[:1]))
    silent = make_controlnet(load_checkpoint(replace(sd15, controls=()), DEVICE).denoiser, tmp_path / "silent")
    _erase(silent)
    with pytest.raises(CheckpointError, match="works with it: edges: it changes nothing"):
        await ImageEngine(DEVICE).prepare(replace(sd15, controls=(replace(sd15.controls[0], path=silent),)))


def _erase(folder: Path) -> None:
    """A ControlNet as it is before its training: all that it adds is zero."""
    (file,) = folder.glob("*.safetensors")
    save_file({name: torch.zeros_like(weight) for name, weight in load_file(file).items()}, file)


@pytest.mark.daily("flux")
@pytest.mark.parametrize("name", ["sdxl", "flux"])
async def test_one_controlnet_follows_several_kinds_of_maps(
    controlled: Callable[[str], CheckpointSpec], name: str, tmp_path: Path
) -> None:
    """It is in memory once, and draws with one of its modes, with several, and beside another ControlNet."""
    plain = replace(controlled(name), controls=())
    denoiser = load_checkpoint(plain, DEVICE).denoiser
    both, other = (make_controlnet(denoiser, tmp_path / str(seed), seed, modes=3) for seed in (1, 2))
    controls = [Control(f"{mode}", "controlnet", both, mode=mode) for mode in range(2)]
    spec = replace(plain, controls=(*controls, Control("other", "controlnet", other, mode=2)))
    assert len(load_checkpoint(spec, DEVICE).controls.nets) == 2
    engine = ImageEngine(DEVICE)
    images = []
    for names in ((), ("0",), ("1",), ("0", "1"), ("1", "other"), ("0", "1", "other")):
        images.append(await drawn(engine, controlled_job(spec, *names, seed=1)))
    assert len({image[0].tobytes() for image in images}) == len(images)


def test_controls_that_are_not_there_or_no_controls_are_named(
    controlled: Callable[[str], CheckpointSpec], tmp_path: Path
) -> None:
    spec = controlled("sd15")
    edges, _, style = spec.controls
    pixart = make_family("pixart", tmp_path / "pixart")
    wrong: list[tuple[dict[str, object], str]] = [
        ({"controls": (replace(edges, path=tmp_path / "none"),)}, "no config.json can be read"),
        ({"controls": (replace(edges, path=spec.path / "unet"),)}, "UNet2DConditionModel is no ControlNet"),
        ({"controls": (replace(style, image_encoder=spec.path / "text_encoder"),)}, "is no image encoder"),
        ({"controls": (replace(style, path=tmp_path / "none.safetensors"),)}, "there is no such file"),
        ({"controls": (style,), "path": pixart}, "PixArtSigmaPipeline takes no IP-Adapters"),
    ]
    for fields, message in wrong:
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(replace(spec, **fields), DEVICE)  # type: ignore[arg-type]


def test_controls_count_as_memory(controlled: Callable[[str], CheckpointSpec]) -> None:
    spec = controlled("sd15")
    plain = replace(spec, controls=())
    more = load_checkpoint(spec, DEVICE).weights_bytes - load_checkpoint(plain, DEVICE).weights_bytes
    item_bytes = compute_dtype("auto", DEVICE).itemsize
    assert more == estimate_bytes(spec, item_bytes) - estimate_bytes(plain, item_bytes) > 0


@pytest.mark.parametrize(
    ("kind", "half"), [("CLIPModel", "CLIPVisionModelWithProjection"), ("SiglipModel", "SiglipVisionModel")]
)
async def test_an_encoder_of_texts_and_images_is_half_loaded(
    controlled: Callable[[str], CheckpointSpec], tmp_path: Path, kind: str, half: str
) -> None:
    """As XLabs' IP-Adapters for FLUX.1 name openai/clip-vit-large-patch14, and those of SD 3.5 SigLIP."""
    flux = controlled("flux")
    folder = make_two_encoders(tmp_path / kind, kind)
    spec = replace(flux, controls=(replace(flux.controls[2], image_encoder=folder),))
    checkpoint = load_checkpoint(spec, DEVICE)
    ((encoder, processor),) = checkpoint.controls.encoders.values()
    assert type(encoder).__name__ == half
    whole = load_file(folder / "model.safetensors")
    for name, weight in encoder.state_dict().items():
        saved = whole[name if name in whole else f"vision_model.{name}"]
        assert torch.equal(weight.cpu(), saved.to(weight.dtype)), name
    assert processor(Image.new("RGB", (50, 40)), return_tensors="pt").pixel_values.shape == (1, 3, 32, 32)
    adapter = sum(weight.numel() for weight in load_file(spec.controls[0].path).values())
    seen = sum(weight.numel() for weight in encoder.parameters())
    assert control_bytes(spec.controls, 4) == 4 * (adapter + seen)
    if kind == "CLIPModel":
        assert isinstance(await last_event(ImageEngine(DEVICE), controlled_job(spec, "style", seed=1)), Finished)


def test_a_folder_with_one_variant_of_a_controlnet_loads(
    controlled: Callable[[str], CheckpointSpec], tmp_path: Path
) -> None:
    spec = controlled("sd15")
    folder = shutil.copytree(spec.controls[0].path, tmp_path / "fp16")
    (file,) = folder.glob("*.safetensors")
    file.rename(file.with_suffix(".fp16.safetensors"))
    assert load_checkpoint(replace(spec, controls=(replace(spec.controls[0], path=folder),)), DEVICE).controls.nets
