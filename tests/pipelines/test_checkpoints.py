"""What loads, and what is refused in words."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipelines.batching import Row
from pipelines.checkpoint_files import CheckpointError
from pipelines.checkpoints import load_checkpoint
from pipelines.diffusion import Drawing
from pipelines.previews import PreviewMap
from pipelines.types import CheckpointSpec, ImageJob, Runtime
from tests.tiny_checkpoints import make_single_file

CPU = torch.device("cpu")
Spec = Callable[[str], CheckpointSpec]


@pytest.fixture
def copied(spec: Spec, tmp_path: Path) -> CheckpointSpec:
    """A checkpoint to break."""
    return replace(spec("sd"), path=Path(shutil.copytree(spec("sd").path, tmp_path / "broken")))


def test_a_single_file_with_a_config_folder_loads_and_draws(
    spec: Spec, tmp_path: Path, job: Callable[..., ImageJob]
) -> None:
    path, config = make_single_file(tmp_path)
    single = replace(spec("sd"), path=path, config=config)
    checkpoint = load_checkpoint(single, CPU)
    row = Row(job("sd", checkpoint=single), 0, 0.0)
    assert Drawing(checkpoint, [row], lambda _: None, PreviewMap()).draw()[0].shape == (64, 64, 3)


def test_the_dtype_of_the_catalog_is_used(spec: Spec) -> None:
    half = replace(spec("sd"), runtime=Runtime(dtype="bfloat16"))
    assert load_checkpoint(half, CPU).components["unet"].dtype == torch.bfloat16
    assert load_checkpoint(spec("sd"), CPU).components["unet"].dtype == torch.float32


def refusal(spec: CheckpointSpec) -> str:
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(spec, CPU)
    return str(refused.value)


def test_pickles_are_refused(copied: CheckpointSpec) -> None:
    for weights in copied.path.rglob("*.safetensors"):
        weights.rename(weights.with_suffix(".bin"))
    assert "convert the checkpoint to safetensors" in refusal(copied)


def test_one_component_as_a_pickle_is_refused(copied: CheckpointSpec) -> None:
    weights = next((copied.path / "unet").glob("*.safetensors"))
    weights.rename(weights.with_suffix(".bin"))
    assert "does not load" in refusal(copied)


def test_code_in_a_checkpoint_is_refused(copied: CheckpointSpec) -> None:
    (copied.path / "pipeline.py").write_text("print('hello')")
    assert "may not bring code" in refusal(copied)


def test_corrupt_and_truncated_weights_are_refused(copied: CheckpointSpec) -> None:
    weights = next((copied.path / "unet").glob("*.safetensors"))
    whole = weights.read_bytes()
    for data in (b"\xff" * 100, whole[: len(whole) // 2], b""):
        weights.write_bytes(data)
        assert str(copied.path) in refusal(copied)


def test_folders_that_are_no_checkpoint_are_refused(copied: CheckpointSpec, tmp_path: Path) -> None:
    assert "no such checkpoint" in refusal(replace(copied, path=tmp_path / "nothing"))
    index = copied.path / "model_index.json"
    index.write_text(json.dumps({"_class_name": "NoSuchPipeline"}))
    assert "NoSuchPipeline" in refusal(copied)
    index.write_text(json.dumps({"_class_name": ["mine", "MyPipeline"]}))
    assert "not run" in refusal(copied)
    index.write_text("{")
    assert "_class_name" in refusal(copied)
    index.unlink()
    assert "model_index.json" in refusal(copied)


def test_an_unknown_scheduler_is_refused_by_name(spec: Spec) -> None:
    odd = replace(spec("sd"), sampling=replace(spec("sd").sampling, scheduler="MagicScheduler"))
    with pytest.raises(CheckpointError, match="MagicScheduler"):
        load_checkpoint(odd, CPU).pipeline("")
