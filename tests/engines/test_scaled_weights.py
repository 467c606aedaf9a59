"""Quantized weights with scales beside them, in one file with several components and in a denoiser alone: they are
multiplied out, or refused by the name of what nothing here reads."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.loading.single_files import load_unscaled
from pipelines.protocol.images import CheckpointSpec
from tests.engines.device import DEVICE
from tests.engines.test_file_sampling import draw, spec_of
from tests.support.tiny_checkpoints import make_single_file
from tests.support.tiny_families import make_family

Weights = dict[str, torch.Tensor]
DENOISER = "model.diffusion_model."
FLOAT8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    """Stable Diffusion in one file with a folder of configs."""
    file, configs = make_single_file(tmp_path_factory.mktemp("whole"))
    return spec_of(file, config=configs)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    """A denoiser of Qwen-Image with its base."""
    base = make_family("qwen-image", tmp_path_factory.mktemp("qwen") / "qwen-image")
    return spec_of(next((base / "transformer").glob("*.safetensors")), base=base)


def matrices(weights: Weights) -> list[str]:
    """The weights that quantizers take."""
    return [
        name for name, each in weights.items() if name.endswith(".weight") and each.dim() == 2 and "norm" not in name
    ]


def layer_json(**said: object) -> torch.Tensor:
    return torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)


def float8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().max().float() / 448
    return (weight / scale).to(FLOAT8), scale


def old_scales(weights: Weights) -> Weights:
    """As ComfyUI named them first: one a matrix, of text encoders too."""
    saved = {**weights, f"{DENOISER}scaled_fp8": torch.zeros(2, dtype=FLOAT8)}
    for name in matrices(weights):
        saved[name], scale = float8(weights[name])
        saved |= {name.replace(".weight", ".scale_weight"): scale.reshape(1)}
        saved |= {name.replace(".weight", ".scale_input"): torch.ones(1)}
    return saved


def new_scales(weights: Weights) -> Weights:
    """As ComfyUI names them now, with JSON for each layer."""
    saved = dict(weights)
    for name in matrices(weights):
        layer = name.removesuffix(".weight")
        saved[name], scale = float8(weights[name])
        saved |= {f"{layer}.weight_scale": scale, f"{layer}.comfy_quant": layer_json(format="float8_e4m3fn")}
    return saved


def blocks(weights: Weights, side: int = 8) -> Weights:
    """As DeepSeek names them, in blocks of `side` x `side`, the last ones cut."""
    saved = dict(weights)
    for name in matrices(weights):
        rows, columns = weights[name].shape
        counts = -(-rows // side), -(-columns // side)
        scale = torch.rand(counts, generator=torch.Generator().manual_seed(1)) / 20 + 0.001
        spread = scale.repeat_interleave(side, 0)[:rows].repeat_interleave(side, 1)[:, :columns]
        saved[name] = (weights[name] / spread).clamp(-448, 448).to(FLOAT8)
        saved[f"{name}_scale_inv"] = scale
        saved[name.replace(".weight", ".comfy_quant")] = layer_json(format="float8_e4m3fn_blockwise", group_size=side)
    return saved


def int8(weights: Weights) -> Weights:
    saved = dict(weights)
    for name in matrices(weights):
        layer = name.removesuffix(".weight")
        scale = weights[name].abs().amax(1, keepdim=True).float().clamp(min=1e-9) / 127
        saved[name] = (weights[name] / scale).round().to(torch.int8)
        saved |= {
            f"{layer}.weight_scale": scale,
            f"{layer}.comfy_quant": layer_json(format="int8_tensorwise", per_row=True),
        }
    return saved


def saved_as(
    spec: CheckpointSpec, quantize: Callable[[Weights], Weights], path: Path, **metadata: str
) -> CheckpointSpec:
    save_file(quantize(load_file(spec.path)), path, metadata)
    return spec_of(path, config=spec.config, base=spec.base)


@pytest.mark.daily("whole-old_scales-3.0", "alone-new_scales-3.0", "whole-blocks-3.0", "alone-int8-1.0")
@pytest.mark.parametrize(("quantize", "most"), [(old_scales, 3.0), (new_scales, 3.0), (blocks, 3.0), (int8, 1.0)])
@pytest.mark.parametrize("kind", ["whole", "alone"])
def test_scaled_weights_are_within_rounding_of_the_plain(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, quantize: Callable[[Weights], Weights], most: float
) -> None:
    plain: CheckpointSpec = request.getfixturevalue(kind)
    scaled = saved_as(plain, quantize, tmp_path / "scaled.safetensors")
    assert np.abs(draw(scaled) - draw(plain)).mean() < most + (DEVICE.type != "cpu")  # which computes in bfloat16
    read, expected = load_unscaled(WeightFile(scaled.path), torch.float32), load_file(plain.path)
    assert read.keys() == expected.keys()
    for name in matrices(expected):
        error = (read[name] - expected[name]).norm() / expected[name].norm()
        assert error < 0.06, name


def renamed(suffix: str) -> Callable[[Weights], Weights]:
    """Scales that nothing here knows."""

    def quantize(weights: Weights) -> Weights:
        old = ".weight_scale"
        return {
            name.replace(old, suffix): weight
            for name, weight in new_scales(weights).items()
            if not name.endswith("comfy_quant")
        }

    return quantize


def beside(suffix: str, value: torch.Tensor) -> Callable[[Weights], Weights]:
    """Known scales, and another tensor beside each."""

    def quantize(weights: Weights) -> Weights:
        more = {name.replace(".weight", suffix): value.clone() for name in matrices(weights)}
        return {name: each for name, each in new_scales(weights).items() if "comfy_quant" not in name} | more

    return quantize


def said(**values: object) -> Callable[[Weights], Weights]:
    """Int8 whose layers say something else."""

    def quantize(weights: Weights) -> Weights:
        return {n: layer_json(**values) if n.endswith("comfy_quant") else each for n, each in int8(weights).items()}

    return quantize


def unscaled_integers(weights: Weights) -> Weights:
    return weights | {name: torch.zeros(weights[name].shape, dtype=torch.uint8) for name in matrices(weights)}


def packed(weights: Weights) -> Weights:
    """nvfp4: two values a byte, a scale for 16 of them, and one for all."""
    saved = dict(weights)
    for name in matrices(weights):
        rows, columns = weights[name].shape
        saved[name] = torch.zeros(rows, -(-columns // 2), dtype=torch.uint8)
        saved[f"{name}_scale"] = torch.ones(rows, -(-columns // 16)).to(FLOAT8)
        saved[f"{name}_scale_2"] = torch.ones(())
    return saved


REFUSED: list[tuple[Callable[[Weights], Weights], str]] = [
    (
        said(format="int8_convrot"),
        r"int8_convrot is not supported \(\d+ layers, such as .*\): use the bf16 or fp8 file",
    ),
    (
        said(format="int8_tensorwise", convrot=True, convrot_groupsize=256),
        "int8_tensorwise with convrot is not supported",
    ),
    (said(format="mxfp8"), "mxfp8 is not supported"),
    (packed, "nvfp4 is not supported"),
    (renamed(".row_scales"), r"row_scales \(F32, 1\) is for .*, and nothing here reads it: use the bf16"),
    (renamed(".lut"), r"\.lut \(F32, 1\) is for .*, and nothing here reads it"),
    (beside(".zero_point", torch.zeros(1)), r"\.zero_point .* nothing here reads it"),
    (beside(".weight.absmax", torch.zeros(4)), r"\.weight\.absmax .* nothing here reads it"),
    (beside(".smooth_factor", torch.ones(1)), "svdquant is not supported|an SVDQuant checkpoint"),
    (unscaled_integers, "is of U8, without a scale that is known here"),
]


@pytest.mark.parametrize(("quantize", "message"), REFUSED)
@pytest.mark.parametrize("kind", ["whole", "alone"])
def test_what_nothing_here_reads_is_refused_by_name(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, quantize: Callable[[Weights], Weights], message: str
) -> None:
    spec = saved_as(request.getfixturevalue(kind), quantize, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(spec, DEVICE)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("quantization_config", {"method": "svdquant"}, "svdquant is not supported"),
        ("_quantization_metadata", {"layers": {"img_in": {"format": "nvfp4"}}}, "nvfp4 is not supported .*img_in"),
    ],
)
def test_the_header_names_the_format(
    alone: CheckpointSpec, tmp_path: Path, key: str, value: Mapping[str, object], message: str
) -> None:
    spec = saved_as(alone, dict, tmp_path / "other.safetensors", **{key: json.dumps(value)})
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(spec, DEVICE)


def test_text_encoders_of_a_file_on_a_base_may_be_of_any_format(alone: CheckpointSpec, tmp_path: Path) -> None:
    """Its denoiser alone is read."""

    def quantize(weights: Weights) -> Weights:
        other = "text_encoders.qwen25_7b.model.layers.0.mlp"
        return {f"{DENOISER}{name}": weight for name, weight in weights.items()} | {
            f"{other}.weight": torch.zeros(4, 2, dtype=torch.uint8), f"{other}.comfy_quant": layer_json(format="nvfp4"),
        }  # fmt: skip

    metadata = {"layers": {"text_encoders.qwen25_7b.model.layers.0.mlp": {"format": "nvfp4"}}}
    spec = saved_as(alone, quantize, tmp_path / "aio.safetensors", _quantization_metadata=json.dumps(metadata))
    checkpoint = load_checkpoint(spec, DEVICE)
    assert np.abs(draw(spec, checkpoint) - draw(alone)).max() <= 1, "rounding, by where the weights lie in memory"
    assert checkpoint.notes == ("its text_encoders.* are not used, but the parts of qwen-image",)
