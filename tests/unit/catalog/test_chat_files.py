"""What the files of a chat checkpoint say without loading it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pipelines.checkpoints.memory.chat_files import loaded_bytes, sees_images
from pipelines.protocol.images import Quantize


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(bytes(1700))
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(bytes(1700))
    return tmp_path


def test_weights_that_are_there_twice_count_once(folder: Path) -> None:
    (folder / "consolidated.safetensors").write_bytes(bytes(3400))
    assert loaded_bytes(folder) == 3400
    for file in folder.glob("model-*"):
        file.unlink()
    assert loaded_bytes(folder) == 3400


@pytest.mark.parametrize(("installed", "expected"), [(True, 3400), (False, 12_800)])
def test_weights_that_no_kernel_computes_with_count_as_they_are_multiplied_out(
    folder: Path, installed: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "mxfp4"}}))
    monkeypatch.setattr("pipelines.checkpoints.memory.chat_files.is_installed", lambda _: installed)
    assert loaded_bytes(folder) == expected


@pytest.mark.parametrize(("installed", "expected"), [(True, 160 + 20 + 16), (False, 320 + 20 + 16)])
def test_float8_counts_twice_where_its_kernels_are_missing(
    tmp_path: Path, installed: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    tensors = {
        "up_proj.weight": torch.zeros(16, 10).to(torch.float8_e4m3fn), "up_proj.weight_scale_inv": torch.zeros(1, 5),
        "norm.weight": torch.zeros(8, dtype=torch.bfloat16),
    }  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.setattr("pipelines.checkpoints.memory.chat_files.is_installed", lambda _: installed)
    header = (tmp_path / "model.safetensors").stat().st_size - (160 + 20 + 16)
    assert loaded_bytes(tmp_path) == expected + (header if installed else 0)


@pytest.mark.parametrize(("quantize", "product"), [("int8", 1.0), ("int4", 0.6), ("nf4", 0.6)])
def test_weights_that_are_quantized_count_as_they_are_kept(tmp_path: Path, quantize: Quantize, product: float) -> None:
    shapes = {
        "model.embed_tokens.weight": (50, 8), "lm_head.weight": (50, 8), "model.norm.weight": (8,),
        "model.layers.0.mlp.up_proj.weight": (16, 8), "model.layers.0.self_attn.q_proj.weight": (8, 8),
    }  # fmt: skip
    save_file(
        {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()},
        tmp_path / "model.safetensors",
    )
    assert loaded_bytes(tmp_path, quantize) == int(2 * (400 + 400 + 8) + product * (128 + 64))


def test_a_model_sees_images_by_its_config_and_its_processor(folder: Path) -> None:
    assert not sees_images(folder / "absent")
    (folder / "config.json").write_text(json.dumps({"vision_config": {}}))
    assert not sees_images(folder)
    (folder / "preprocessor_config.json").write_text("{}")
    assert sees_images(folder)
