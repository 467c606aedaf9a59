"""Denoisers alone in one file, on the components of a base folder: plain, float8 and GGUF, in either naming."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.folder import CheckpointFolder
from pipelines.checkpoints.inspection.beside_folders import find_bases
from pipelines.checkpoints.memory.device_bytes import estimate_bytes
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.header import read_header
from pipelines.device.memory import Budgets
from pipelines.images.denoising.merging import Sharing
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.engine import ImageEngine
from pipelines.images.loading import checkpoint_cache
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.checkpoint_cache import CheckpointCache
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.images.scheduling.row_limits import RowLimits
from pipelines.images.scheduling.scheduler import DeviceScheduler
from pipelines.protocol.images import CheckpointSpec, SamplingDefaults
from tests.engines.device import DEVICE
from tests.support.gguf_files import with_flattened_convolutions, write_gguf
from tests.support.image_jobs import image_job
from tests.support.tiny_checkpoints import fused, original_unet_name, original_z_image_name
from tests.support.tiny_families import make_family

KIND = gguf.GGMLQuantizationType
Weights = dict[str, torch.Tensor]
OF_256 = "time_text_embed.timestep_embedder.linear_1.weight"  # the only rows of the tiny FLUX.1 that are as long


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family("flux", tmp_path_factory.mktemp("base") / "flux")


def weights_of(base: Path) -> Weights:
    return load_file(base / "transformer" / "diffusion_pytorch_model.safetensors")


def single_file(base: Path, path: Path) -> CheckpointSpec:
    return CheckpointSpec(
        name=path.stem, path=path, config=None, family="alpha", conditioning="img2img", max_references=1, base=base,
        native_area_px=64 * 64, max_area_px=96 * 96, sampling=SamplingDefaults(guidance=2.0),
    )  # fmt: skip


def plain(weights: Weights, path: Path) -> None:
    save_file(weights, path)


def prefixed(weights: Weights, path: Path) -> None:
    """As ComfyUI saves a model."""
    save_file({f"model.diffusion_model.{name}": weight for name, weight in weights.items()}, path)


def wrapped(before: str) -> Callable[[Weights, Path], None]:
    """As trainers save a part of what they train, or a compiled one."""
    return lambda weights, path: save_file({f"{before}{name}": weight for name, weight in weights.items()}, path)


def float8(weights: Weights, path: Path) -> None:
    save_file({name: weight.to(torch.float8_e4m3fn) for name, weight in weights.items()}, path)


def scaled_float8(weights: Weights, path: Path) -> None:
    """Matrices have a scale beside them, and others are as they were."""
    saved = {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    for name, weight in weights.items():
        if name.endswith(".weight") and weight.dim() == 2:
            scale = weight.abs().max() / 448
            saved |= {name: (weight / scale).to(torch.float8_e4m3fn), name.replace(".weight", ".scale_weight"): scale}
        else:
            saved[name] = weight
    save_file(saved, path)


def scaled_float8_by_row(weights: Weights, path: Path) -> None:
    """As some quantizers name and shape them: `weight_scale`, one for each row, and scales of the inputs beside it."""
    saved = {}
    for name, weight in weights.items():
        if name.endswith(".weight") and weight.dim() == 2:
            scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-9) / 448
            saved |= {name: (weight / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale}
            saved[name.replace(".weight", ".input_scale")] = torch.ones(1)
        else:
            saved[name] = weight
    save_file(saved, path)


def float8_e5m2(weights: Weights, path: Path) -> None:
    save_file({name: weight.to(torch.float8_e5m2) for name, weight in weights.items()}, path)


def quantized(kind: gguf.GGMLQuantizationType) -> Callable[[Weights, Path], None]:
    """GGUF: of this type where rows are blocks of 32, else F32."""

    def save(weights: Weights, path: Path) -> None:
        blocks = {
            name: gguf.quants.quantize(weight.numpy().astype(np.float32), kind)
            for name, weight in weights.items()
            if weight.ndim == 2 and weight.shape[1] % 32 == 0
        }
        write_gguf(weights, blocks, kind, path)

    return save


def draw(spec: CheckpointSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    row = Row(image_job(spec), 0, 0.0)
    return ImagePipeline(load_checkpoint(spec, DEVICE), row, lambda _: None, PreviewMap()).generate()


@pytest.mark.daily("prefixed-*", "scaled_float8-*", "scaled_float8_by_row-*", "save-bf16.gguf-*", "save-q4_0.gguf-*")
@pytest.mark.parametrize(
    ("save", "name", "difference"),
    [
        (plain, "plain.safetensors", 0),
        (prefixed, "prefixed.safetensors", 0),
        (float8, "float8.safetensors", 3),
        (float8_e5m2, "e5m2.safetensors", 5),
        (scaled_float8, "scaled.safetensors", 3),
        (scaled_float8_by_row, "by-row.safetensors", 3),
        (quantized(KIND.BF16), "bf16.gguf", 0.5),
        (wrapped("net."), "net.safetensors", 0),
        (wrapped("module._orig_mod."), "compiled.safetensors", 0),
        (quantized(KIND.Q8_0), "q8_0.gguf", 1),
        (quantized(KIND.Q5_1), "q5_1.gguf", 3),
        (quantized(KIND.Q5_0), "q5_0.gguf", 3),
        (quantized(KIND.Q4_1), "q4_1.gguf", 5),
        (quantized(KIND.Q4_0), "q4_0.gguf", 5),
    ],
)
def test_a_denoiser_alone_draws_what_its_weights_draw(
    base: Path, tmp_path: Path, save: Callable[[Weights, Path], None], name: str, difference: float
) -> None:
    save(weights_of(base), tmp_path / name)
    spec = single_file(base, tmp_path / name)
    of_folder = draw(replace(spec, path=base, base=None)).astype(int)
    assert np.abs(draw(spec) - of_folder).mean() <= difference
    checkpoint = load_checkpoint(spec, DEVICE)
    assert estimate_bytes(spec, 4) == pytest.approx(checkpoint.weights_bytes, rel=0.15)


@pytest.mark.daily("10-scales0", "14-scales4")
@pytest.mark.parametrize(
    ("kind", "scales"),  # where a block has its scales, of two bytes each
    [(KIND.Q2_K, (-4, -2)), (KIND.Q3_K, (-2,)), (KIND.Q4_K, (0, 2)), (KIND.Q5_K, (0, 2)), (KIND.Q6_K, (-2,))],
)
def test_blocks_of_256_weights_draw_what_they_stand_for(
    base: Path, tmp_path: Path, kind: gguf.GGMLQuantizationType, scales: tuple[int, ...]
) -> None:
    """The library reads these types and writes none, so the blocks are random bits with small scales."""
    weights = weights_of(base)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = np.random.default_rng(0).integers(0, 256, (weights[OF_256].shape[0], size), dtype=np.uint8)
    for place in scales:
        blocks[:, place % size : place % size + 2] = np.frombuffer(np.float16(2e-4).tobytes(), np.uint8)
    weights[OF_256] = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    write_gguf(weights, {OF_256: blocks}, kind, tmp_path / "blocks.gguf")
    plain(weights, tmp_path / "plain.safetensors")
    of_blocks, of_weights = (
        draw(single_file(base, tmp_path / name)).astype(int) for name in ("blocks.gguf", "plain.safetensors")
    )
    assert np.abs(of_blocks - of_weights).mean() <= 0.5
    of_others = draw(replace(single_file(base, tmp_path / "blocks.gguf"), path=base, base=None)).astype(int)
    assert np.abs(of_blocks - of_others).mean() > 1


def test_other_weights_draw_an_image_that_is_further_away(base: Path, tmp_path: Path) -> None:
    """Than quantized ones, so that the bounds above say something."""
    plain({name: weight * 2 for name, weight in weights_of(base).items()}, tmp_path / "other.safetensors")
    spec = single_file(base, tmp_path / "other.safetensors")
    of_folder = draw(replace(spec, path=base, base=None)).astype(int)
    assert np.abs(draw(spec) - of_folder).mean() > 10


def test_float8_files_stay_small_and_scaled_ones_are_multiplied_out(base: Path, tmp_path: Path) -> None:
    weights = weights_of(base)
    for save in (float8, scaled_float8):
        save(weights, tmp_path / f"{save.__name__}.safetensors")
    stored, scaled = (
        load_checkpoint(single_file(base, tmp_path / f"{save.__name__}.safetensors"), DEVICE).denoiser
        for save in (float8, scaled_float8)
    )
    name = "transformer_blocks.0.attn.to_q.weight"
    assert stored.get_parameter(name).dtype == torch.float8_e4m3fn
    assert scaled.get_parameter(name).dtype == torch.float32
    torch.testing.assert_close(scaled.get_parameter(name), weights[name], rtol=0.07, atol=1e-3)


def test_weights_of_another_model_are_refused(base: Path, tmp_path: Path) -> None:
    weights = weights_of(base)
    plain({f"other.{name}": weight for name, weight in weights.items()}, tmp_path / "part.safetensors")
    with pytest.raises(CheckpointError, match="its tensors are not those of a FluxTransformer2DModel"):
        load_checkpoint(single_file(base, tmp_path / "part.safetensors"), DEVICE)


@pytest.mark.daily("sd15-plain-safetensors-0-", "sd15-float8-safetensors-5-model.diffusion_model.", "sdxl-save-gguf-1-")
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize(
    ("save", "suffix", "difference"),
    [(plain, "safetensors", 0), (float8, "safetensors", 5), (quantized(KIND.Q8_0), "gguf", 1)],
)
@pytest.mark.parametrize("family", ["sd15", "sdxl"])
def test_a_unet_in_its_original_names_draws_what_its_weights_draw(
    tmp_path: Path, family: str, save: Callable[[Weights, Path], None], suffix: str, difference: float, prefix: str
) -> None:
    folder = make_family(family, tmp_path / family)
    weights = load_file(folder / "unet" / "diffusion_pytorch_model.safetensors")
    file = tmp_path / f"tuned.{suffix}"
    others = {} if suffix == "gguf" or not prefix else {"first_stage_model.decoder.conv_in.bias": torch.zeros(8)}
    save({prefix + original_unet_name(name): weight for name, weight in weights.items()} | others, file)
    spec = single_file(folder, file)
    of_folder = draw(replace(spec, path=folder, base=None)).astype(int)
    assert np.abs(draw(spec) - of_folder).mean() <= difference
    plain(weights, tmp_path / "own-names.safetensors")
    assert (draw(single_file(folder, tmp_path / "own-names.safetensors")) == of_folder).all()


def test_a_gguf_unet_with_flattened_convolutions_draws_what_its_weights_draw(tmp_path: Path) -> None:
    folder = make_family("sdxl", tmp_path / "sdxl")
    weights = load_file(folder / "unet" / "diffusion_pytorch_model.safetensors")
    named = {original_unet_name(name): weight for name, weight in weights.items()}
    spec = single_file(folder, with_flattened_convolutions(named, tmp_path / "flattened.gguf"))
    stored = {tensor.name: tensor for tensor in read_header(spec.path).tensors}
    name = "input_blocks.0.0.weight"
    assert (stored[name].dtype, stored[name].shape) == ("Q8_0", tuple(named[name].shape))
    of_folder = draw(replace(spec, path=folder, base=None)).astype(int)
    assert np.abs(draw(spec) - of_folder).mean() <= 1
    assert [each.path for each in find_bases(WeightFile(spec.path), [CheckpointFolder(folder)])] == [folder]


@pytest.mark.parametrize("suffix", ["gguf", "safetensors"])
def test_vectors_that_the_model_has_as_rows_are_taken(tmp_path: Path, suffix: str) -> None:
    """Z-Image's tokens of padding, which its GGUF files have without their side of 1."""
    folder = make_family("z-image", tmp_path / "z-image")
    weights = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    named = {original_z_image_name(name): weight for name, weight in fused(weights).items()}
    named |= {name: weight.flatten() for name, weight in named.items() if name.endswith("pad_token")}
    assert {weight.dim() for name, weight in named.items() if name.endswith("pad_token")} == {1}
    spec = single_file(folder, tmp_path / f"comfy.{suffix}")
    (quantized(KIND.Q8_0) if suffix == "gguf" else plain)(named, spec.path)
    of_folder = draw(replace(spec, path=folder, base=None)).astype(int)
    assert np.abs(draw(spec) - of_folder).mean() <= 1


def test_a_unet_of_another_model_is_refused(tmp_path: Path) -> None:
    sd15, sdxl = (make_family(name, tmp_path / name) for name in ("sd15", "sdxl"))
    weights = load_file(sd15 / "unet" / "diffusion_pytorch_model.safetensors")
    plain({original_unet_name(name): weight for name, weight in weights.items()}, tmp_path / "sd15.safetensors")
    plain({"something.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    for base, name in ((sdxl, "sd15"), (sd15, "other")):
        with pytest.raises(CheckpointError, match="its tensors are not those of a UNet2DConditionModel"):
            load_checkpoint(single_file(base, tmp_path / f"{name}.safetensors"), DEVICE)


async def test_checkpoints_of_one_base_share_its_components(base: Path, tmp_path: Path) -> None:
    specs = []
    for name, factor in (("one", 0.5), ("two", 0.25)):
        plain({key: weight * factor for key, weight in weights_of(base).items()}, tmp_path / f"{name}.safetensors")
        specs.append(single_file(base, tmp_path / f"{name}.safetensors"))
    folder = replace(specs[0], path=base, base=None)
    whole = estimate_bytes(folder, 4)
    denoiser = sum(weight.numel() for weight in weights_of(base).values()) * 4
    room = whole + denoiser + denoiser // 2  # for two of them, and not for what a copy of the others takes
    cache = CheckpointCache(DEVICE, Budgets(room, 0, 0), Sharing(DeviceScheduler(), RowLimits(1)))
    one, two = [await cache.load(spec) for spec in specs]
    for name, part in one.checkpoint.components.items():
        if isinstance(part, torch.nn.Module):
            assert (part is two.checkpoint.components[name]) == (name != "transformer"), name
    assert cache.find(specs[0]) is one
    third = await cache.load(folder)  # evicts the first
    assert third.checkpoint.components["vae"] is two.checkpoint.components["vae"]
    assert cache.find(specs[0]) is None
    assert cache.find(specs[1]) is two


@pytest.mark.nightly
async def test_memory_that_is_freed_beside_a_load_takes_nothing_from_what_it_loads(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was out of memory evicts the first checkpoint, while the second has taken its components."""
    specs = [single_file(base, tmp_path / f"{name}.safetensors") for name in ("one", "two")]
    for spec in specs:
        plain(weights_of(base), spec.path)
    cache = CheckpointCache(DEVICE, Budgets(2**30, 0, 0), Sharing(DeviceScheduler(), RowLimits(1)))
    cache._limits = Budgets(2**30, 2**30, 0)  # as beside a GPU
    await cache.load(specs[0])
    has_read, may_end = threading.Event(), threading.Event()
    moved: list[Checkpoint] = []

    def hold(*arguments: object) -> Checkpoint:
        checkpoint = load_checkpoint(*arguments)  # type: ignore[arg-type]
        has_read.set()
        assert may_end.wait(120)
        return checkpoint

    monkeypatch.setattr(checkpoint_cache, "load_checkpoint", hold)
    monkeypatch.setattr(Checkpoint, "move", lambda checkpoint, _: moved.append(checkpoint))
    loading = asyncio.create_task(cache.load(specs[1]))
    assert await asyncio.to_thread(has_read.wait, 120)
    freeing = asyncio.create_task(cache.free_memory())
    await asyncio.sleep(0)  # it begins
    may_end.set()
    two = await loading
    await freeing
    gone = {id(part) for checkpoint in moved for part in checkpoint.components.values()}
    assert not two.on_device or gone.isdisjoint(map(id, two.checkpoint.components.values()))
    assert await cache.load(specs[1]) is two, "it comes back whole"
    assert two.on_device


@pytest.mark.nightly
async def test_they_draw_in_turns_on_the_shared_components(base: Path, tmp_path: Path) -> None:
    plain(weights_of(base), tmp_path / "one.safetensors")
    engine = ImageEngine(DEVICE, Budgets(2**30, 0, 2**30))
    spec = single_file(base, tmp_path / "one.safetensors")
    for each in (spec, replace(spec, path=base, base=None), spec):
        events = [event async for event in engine.submit(image_job(each))]
        assert type(events[-1]).__name__ == "Finished", events[-1]
