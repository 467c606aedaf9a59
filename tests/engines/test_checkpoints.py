"""What loads, and the errors of what does not."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder import libraries
from pipelines.checkpoints.folder.sums import Digests, describe
from pipelines.checkpoints.memory.device_bytes import estimate_bytes
from pipelines.device.memory import compute_dtype
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.images import CheckpointSpec, ImageJob, Offload, Runtime
from tests.engines.device import DEVICE
from tests.engines.test_families import family_spec
from tests.support.tiny_checkpoints import make_single_file
from tests.support.tiny_families import make_family
from tests.support.weight_files import inspect_checkpoint

Spec = Callable[[str], CheckpointSpec]


@pytest.fixture
def copied(spec: Spec, tmp_path: Path) -> CheckpointSpec:
    """A copy that a test may break."""
    return replace(spec("sd"), path=Path(shutil.copytree(spec("sd").path, tmp_path / "broken")))


def test_a_single_file_with_a_config_folder_loads_and_draws(
    spec: Spec, tmp_path: Path, job: Callable[..., ImageJob]
) -> None:
    path, config = make_single_file(tmp_path)
    single = replace(spec("sd"), path=path, config=config)
    checkpoint = load_checkpoint(single, DEVICE)
    row = Row(job("sd", checkpoint=single), 0, 0.0)
    assert ImagePipeline(checkpoint, row, lambda _: None, PreviewMap()).generate().shape == (64, 64, 3)


def test_the_dtype_of_the_catalog_is_used(spec: Spec) -> None:
    default = torch.float32 if DEVICE.type == "cpu" else torch.bfloat16
    for dtype, expected in (("auto", default), ("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        checkpoint = load_checkpoint(replace(spec("sd"), runtime=Runtime(dtype=dtype)), DEVICE)
        assert checkpoint.components["unet"].dtype == expected


def test_only_the_files_that_are_loaded_count(copied: CheckpointSpec, tmp_path: Path) -> None:
    digests = Digests(tmp_path / "digests.json")
    size, description = estimate_bytes(copied, 4), describe(copied, digests)
    for part in ("unet", "vae", "text_encoder"):
        weights = next((copied.path / part).glob("*.safetensors"))
        shutil.copy(weights, copied.path / f"{part}.safetensors")  # such as a copy in one file
        shutil.copytree(weights.parent, copied.path / f"{part}_1_0")
        for variant in ("fp16", "fp16-00001-of-00002", "non_ema"):
            shutil.copy(weights, weights.with_suffix(f".{variant}.safetensors"))
    assert estimate_bytes(copied, 4) == size
    assert describe(copied, digests) == description
    for weights in list((copied.path / "unet").glob("*.safetensors")):
        if "fp16" not in weights.name:
            weights.unlink()
    assert estimate_bytes(copied, 4) > size  # both variants count: which one would be loaded is unknown


def test_shards_all_count(copied: CheckpointSpec) -> None:
    size = estimate_bytes(copied, 4)
    weights = next((copied.path / "unet").glob("*.safetensors"))
    tensors = sorted(load_file(weights).items())
    shards = [f"{weights.stem}-0000{number}-of-00002.safetensors" for number in (1, 2)]
    places = {name: shards[place % 2] for place, (name, _) in enumerate(tensors)}
    (weights.parent / f"{weights.stem}.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for number, half in enumerate((dict(tensors[::2]), dict(tensors[1::2])), 1):
        for variant in ("", ".fp16"):
            save_file(half, weights.with_name(f"{weights.stem}{variant}-0000{number}-of-00002.safetensors"))
    weights.unlink()
    assert estimate_bytes(copied, 4) == size


@pytest.mark.daily("runtime0-*", "runtime1-loaded1-sd", "runtime3-*", "runtime4-*")
@pytest.mark.parametrize("name", ["sd", "klein"])
@pytest.mark.parametrize(
    ("runtime", "loaded"),
    [
        (Runtime(), Runtime()),
        (Runtime(dtype="bfloat16", quantize="float8"), Runtime(dtype="bfloat16", quantize="float8")),
        (Runtime(dtype="bfloat16", quantize="fp8"), Runtime(dtype="bfloat16", quantize="fp8")),
        (Runtime(offload="model"), Runtime()),
        (Runtime(offload="group"), Runtime()),
    ],
)
def test_the_estimate_is_what_the_loaded_weights_take(spec: Spec, name: str, runtime: Runtime, loaded: Runtime) -> None:
    requested = replace(spec(name), runtime=runtime)
    checkpoint = load_checkpoint(replace(requested, runtime=loaded), DEVICE)  # nothing can be offloaded from a CPU
    takes = replace(checkpoint, runtime=runtime).weights_bytes
    assert estimate_bytes(requested, compute_dtype(runtime.dtype, DEVICE).itemsize) == pytest.approx(takes, rel=0.15)


def test_offloading_lowers_the_estimate(spec: Spec) -> None:
    none, encoders, model, group = (
        estimate_bytes(replace(spec("sd"), runtime=Runtime(offload=offload)), 4) for offload in get_args(Offload)
    )
    assert none > encoders > model > 2 * group


def test_quantizing_makes_the_denoiser_smaller_and_nothing_else(spec: Spec) -> None:
    full, quantized = (
        estimate_bytes(replace(spec("sd"), runtime=Runtime(quantize=quantize)), 2) for quantize in ("none", "int8")
    )
    denoiser = sum(weight.numel() for weight in load_checkpoint(spec("sd"), DEVICE).denoiser.parameters())
    assert full - quantized == denoiser


def load_error(spec: CheckpointSpec) -> str:
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(spec, DEVICE)
    return str(raised.value)


def test_pickles_are_refused(copied: CheckpointSpec) -> None:
    for weights in copied.path.rglob("*.safetensors"):
        weights.rename(weights.with_suffix(".bin"))
    assert "convert the checkpoint to safetensors" in load_error(copied)


def test_one_component_as_a_pickle_is_refused(copied: CheckpointSpec) -> None:
    weights = next((copied.path / "unet").glob("*.safetensors"))
    weights.rename(weights.with_suffix(".bin"))
    assert "no weights but diffusion_pytorch_model.bin, which can run code" in load_error(copied)


def test_code_in_a_checkpoint_is_refused(copied: CheckpointSpec) -> None:
    (copied.path / "pipeline.py").write_text("print('hello')")
    assert "may not bring code" in load_error(copied)


def test_corrupt_and_truncated_weights_are_refused(copied: CheckpointSpec) -> None:
    weights = next((copied.path / "unet").glob("*.safetensors"))
    whole = weights.read_bytes()
    for data in (b"\xff" * 100, whole[: len(whole) // 2], b""):
        weights.write_bytes(data)
        assert str(copied.path) in load_error(copied)


def test_folders_that_are_no_checkpoint_are_refused(copied: CheckpointSpec, tmp_path: Path) -> None:
    assert "no such checkpoint" in load_error(replace(copied, path=tmp_path / "nothing"))
    misspelt = copied.path.with_name(f"{copied.path.name}-1")
    assert f"did you mean {copied.path}?" in load_error(replace(copied, path=misspelt))
    index = copied.path / "model_index.json"
    index.write_text(json.dumps({"_class_name": "NoSuchPipeline"}))
    assert "NoSuchPipeline" in load_error(copied)
    index.write_text(json.dumps({"_class_name": ["mine", "MyPipeline"]}))
    assert "not run" in load_error(copied)
    index.write_text("{")
    assert "_class_name" in load_error(copied)
    index.unlink()
    assert "model_index.json" in load_error(copied)


def test_parts_of_other_libraries_and_pipelines_of_videos_are_refused(copied: CheckpointSpec) -> None:
    index = copied.path / "model_index.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps({**content, "vae": ["my_library", "MyVae"]}))
    assert load_error(copied) == f"{copied.path}: vae is of the library my_library, whose code is not loaded"
    index.write_text(json.dumps({**content, "_class_name": "WanPipeline"}))
    assert "WanPipeline draws videos" in load_error(copied)


def test_an_unknown_scheduler_is_refused_by_name(spec: Spec) -> None:
    odd = replace(spec("sd"), sampling=replace(spec("sd").sampling, scheduler="MagicScheduler"))
    with pytest.raises(CheckpointError, match="MagicScheduler"):
        load_checkpoint(odd, DEVICE).pipeline()


def test_a_folder_with_one_variant_alone_loads(copied: CheckpointSpec) -> None:
    size, plain = estimate_bytes(copied, 4), load_checkpoint(copied, DEVICE).denoiser.state_dict()
    for weights in copied.path.glob("*/*.safetensors"):
        weights.rename(weights.with_suffix(".fp16.safetensors"))
    assert estimate_bytes(copied, 4) == size
    loaded = load_checkpoint(copied, DEVICE).denoiser.state_dict()
    assert all(torch.equal(weight, plain[name]) for name, weight in loaded.items())
    unet = next((copied.path / "unet").glob("*.safetensors"))
    shutil.copy(unet, unet.with_name(unet.name.replace("fp16", "ema")))
    unet.rename(unet.with_name(unet.name.replace("fp16", "non_ema")))
    with pytest.raises(CheckpointError, match="no plain weights but the variants ema, fp16, non_ema; keep one"):
        load_checkpoint(copied, DEVICE)


def test_a_missing_component_and_a_truncated_file_are_named(copied: CheckpointSpec) -> None:
    weights = next((copied.path / "unet").glob("*.safetensors"))
    size = weights.stat().st_size
    with weights.open("rb+") as file:
        file.truncate(size - 100)
    with pytest.raises(CheckpointError, match=f"truncated, it has {size - 100:,} of {size:,} bytes"):
        estimate_bytes(copied, 4)
    shutil.rmtree(copied.path / "tokenizer")
    with pytest.raises(CheckpointError, match=r"tokenizer/ is missing, which model_index\.json names"):
        estimate_bytes(copied, 4)


@pytest.mark.parametrize(
    ("installed", "named"),
    [(set(), "sentencepiece and protobuf"), ({"sentencepiece"}, "protobuf"), ({"protobuf"}, "sentencepiece")],
    ids=["neither", "sentencepiece", "protobuf"],
)
def test_a_tokenizer_in_a_model_file_names_what_reads_it(
    installed: set[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers then asks for tiktoken. PixArt-Sigma's folder has no other file of its tokenizer."""
    folder = make_family("pixart", tmp_path / "pixart")
    (folder / "tokenizer" / "tokenizer.json").unlink()
    (folder / "tokenizer" / "spiece.model").write_bytes(b"\x00")
    monkeypatch.setattr("pipelines.checkpoints.folder.libraries.is_installed", lambda library: library in installed)
    assert inspect_checkpoint(folder).needs == tuple(named.split(" and "))
    with pytest.raises(CheckpointError, match=rf"PixArtSigmaPipeline needs {named}, not installed here: .*vision"):
        load_checkpoint(family_spec("pixart", tmp_path, "img2img"), DEVICE)


def test_libraries_are_found_by_the_names_that_pip_takes() -> None:
    installed = ["torch", "protobuf", "no-such-library", "no-such-package.module"]
    assert [library for library in installed if libraries.is_installed(library)] == ["torch", "protobuf"]
