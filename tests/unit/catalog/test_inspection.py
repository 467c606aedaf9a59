"""What is found in a checkpoint without loading it, and the values that are suggested for it."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipelines.checkpoints.errors import BrokenFile, CheckpointError
from pipelines.checkpoints.folder.folder import CheckpointFolder
from pipelines.checkpoints.folder.versions import find_snapshot
from pipelines.checkpoints.inspection.beside_folders import find_bases, nearest_base
from pipelines.checkpoints.inspection.suggestion import suggest
from pipelines.checkpoints.memory.device_bytes import estimate_bytes
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.header import read_header
from pipelines.protocol.images import CheckpointSpec
from tests.support.weight_files import INDEX, denoiser_file, flux_folder, gguf_file, inspect_checkpoint

REPOSITORY = Path(__file__).resolve().parents[3]
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.mark.parametrize(
    ("name", "supports", "second_pass", "values"),
    [
        ("starter-alpha", "text image mask negative_prompt guidance steps", True, ("img2img", 1024**2, 50, 7.5)),
        ("starter-beta", "text image mask steps", True, ("native", 1024**2, 4, 1.0)),
    ],
)
def test_the_starters(name: str, supports: str, second_pass: bool, values: tuple[Any, ...]) -> None:
    found = inspect_checkpoint(REPOSITORY / "weights" / name)
    assert (found.problems, found.needs) == ((), ())
    assert found.capabilities is not None
    assert found.capabilities.names == supports.split()
    assert found.capabilities.second_pass is second_pass
    suggested = suggest(found).values
    keys = ("conditioning", "native_area_px", "steps", "sampling.guidance")
    assert tuple(suggested[key] for key in keys) == values


def test_parts_and_their_bytes(tmp_path: Path) -> None:
    found = inspect_checkpoint(flux_folder(tmp_path / "flux"))
    assert found.problems == ()
    assert {part.name: part.weights for part in found.parts if part.weights} == {
        "text_encoder": 30,
        "text_encoder_2": 70,
        "transformer": 1000,
        "vae": 10,
    }
    assert (found.weights, found.device_bytes(2), found.device_bytes(4)) == (1110, 2220, 4440)
    assert {part.dtypes for part in found.parts} == {(), ("F16",)}


def write_index(folder: Path, index: dict[str, Any]) -> None:
    (folder / "model_index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "tokenizer"), "tokenizer/ is missing, which model_index.json names"),
        (lambda folder: (folder / "vae/diffusion_pytorch_model.safetensors").unlink(), "vae: no weights"),
        (
            lambda folder: (folder / "vae/diffusion_pytorch_model.safetensors").rename(folder / "vae/model.bin"),
            "vae: no weights but model.bin, which can run code",
        ),
        (
            lambda folder: (folder / "vae/x.safetensors.index.json").write_text('{"weight_map": {"a": "gone"}}')
            and (folder / "vae/diffusion_pytorch_model.safetensors").unlink(),
            "gone: missing, x.safetensors.index.json names it",
        ),
        (lambda folder: (folder / "own.py").write_text(""), "may not bring code"),
        (
            lambda folder: (folder / "vae/diffusion_pytorch_model.safetensors").rename(folder / "vae/my.safetensors"),
            "vae: no diffusion_pytorch_model.safetensors but my.safetensors, which is not looked for: rename it",
        ),
        (
            lambda folder: (folder / "vae/diffusion_pytorch_model.safetensors").rename(
                folder / "vae/diffusion_pytorch_model-00001-of-00001.safetensors"
            ),
            "vae/diffusion_pytorch_model.safetensors.index.json: missing, which says what is in which shard",
        ),
        (
            lambda folder: (folder / "vae/diffusion_pytorch_model.safetensors.index.json").write_text("{"),
            "diffusion_pytorch_model.safetensors.index.json: not valid JSON",
        ),
        (
            lambda folder: (folder / "vae/diffusion_pytorch_model.safetensors.index.json").write_text("[]"),
            "diffusion_pytorch_model.safetensors.index.json: names no shards",
        ),
        (
            lambda folder: (folder / "vae/diffusion_pytorch_model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "diffusion_pytorch_model-00001-of-00001.safetensors"}}'
            ),
            "vae/diffusion_pytorch_model-00001-of-00001.safetensors: missing",
        ),
        (
            lambda folder: (folder / "vae/diffusion_pytorch_model.safetensors").rename(
                folder / "vae/diffusion_pytorch_model.fp16.safetensors"
            )
            and shutil.copy(
                folder / "transformer/diffusion_pytorch_model.safetensors",
                folder / "vae/diffusion_pytorch_model.ema.safetensors",
            ),
            "but the variants ema, fp16; keep one",
        ),
        (lambda folder: (folder / "tokenizer_2/tokenizer.json").write_text("<html>"), "tokenizer.json: not valid JSON"),
        (
            lambda folder: (folder / "tokenizer_2/spiece.model").write_bytes(b"version https://git-lfs.github.com/v1"),
            "spiece.model: a pointer of git-lfs in place of the file",
        ),
        (lambda folder: (folder / "vae/config.json").write_text("[]"), "vae/config.json: no JSON object"),
        (
            lambda folder: (folder / "scheduler/scheduler_config.json").rename(folder / "scheduler/config.json"),
            "scheduler/scheduler_config.json: missing",
        ),
        (
            lambda folder: write_index(folder, {name: each for name, each in INDEX.items() if name != "vae"}),
            "model_index.json does not name vae, which FluxPipeline needs",
        ),
        (
            lambda folder: write_index(folder, {**INDEX, "transformer": [None, None]}),
            "model_index.json leaves out transformer, which FluxPipeline needs",
        ),
        (
            lambda folder: write_index(folder, {**INDEX, "vae": ["diffusers", "AutoencoderMagic"]}),
            "vae is of the class AutoencoderMagic, which the installed diffusers does not have",
        ),
        (
            lambda folder: write_index(folder, {**INDEX, "_class_name": "MagicPipeline"}),
            "the installed diffusers has no pipeline MagicPipeline",
        ),
        (
            lambda folder: write_index(folder, {**INDEX, "vae": ["my_library", "Vae"]}),
            "vae is of the library my_library",
        ),
        (
            lambda folder: save_file(
                {"a.weight": np.zeros((4, 4), np.int8)}, folder / "vae/diffusion_pytorch_model.safetensors"
            ),
            "a.weight is of I8, and no quantization_config says of which scale: use the bf16 or fp8 file",
        ),
        (
            lambda folder: write_index(folder, {**INDEX, "_class_name": "WanPipeline"}),
            "WanPipeline draws videos",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, damage: Any, message: str) -> None:
    folder = flux_folder(tmp_path / "flux")
    damage(folder)
    assert message in "; ".join(inspect_checkpoint(folder).problems)


def test_a_truncated_file_is_named_with_its_bytes(tmp_path: Path) -> None:
    folder = flux_folder(tmp_path / "flux")
    file = folder / "vae/diffusion_pytorch_model.safetensors"
    whole = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-5])
    problems = inspect_checkpoint(folder).problems
    assert problems == (f"{file}: truncated, it has {whole - 5} of {whole} bytes",)


def test_a_file_with_more_than_its_header_tells_is_named_with_what_is_too_many(tmp_path: Path) -> None:
    folder = flux_folder(tmp_path / "flux")
    file = folder / "vae/diffusion_pytorch_model.safetensors"
    whole = file.stat().st_size
    file.write_bytes(file.read_bytes() + bytes(512))
    problems = inspect_checkpoint(folder).problems
    assert problems == (f"{file}: 512 bytes too many after its {whole}: copy it again",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, so the download or the copy is not whole"),
        (b"\xff" * 100, "or a broken one"),
        (b"GGUF" + b"\xff" * 100, r"or a broken one|a \.gguf file under another name: rename it"),
        (b"\n<!DOCTYPE html><html>Sign in</html>", "a web page in place of the weights"),
        (b'{"error": "Invalid credentials"}', "a message in place of the weights"),
        (b"PK\x03\x04" + bytes(100), "a pickle under another name, which can run code"),
        (b"\x80\x02}q\x00.", "a pickle under another name, which can run code"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    ],
)
@pytest.mark.parametrize("name", ["x.safetensors", "x.gguf"])
def test_files_of_another_format_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BrokenFile, match=message):
        read_header(tmp_path / name)
    (problem,) = inspect_checkpoint(tmp_path / name).problems
    assert re.search(message, problem)


@pytest.mark.parametrize(
    "header",
    [
        b'{"__metadata__": ["x"]}',
        b'{"__metadata__": null}',
        *(b'{"a": {"dtype": %s, "shape": [2], "data_offsets": [0, 4]}}' % each for each in (b"null", b"3")),
        *(b'{"a": {"dtype": "I8", "shape": %s, "data_offsets": [0, 4]}}' % each for each in (b'"2"', b"[{}]", b"[-2]")),
        b'{"a": {"dtype": "F16", "shape": [2], "data_offsets": [4, 0]}}',
        b"[" * 100_000,
    ],
)
def test_a_header_with_values_of_another_kind_is_a_broken_one(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(100))
    assert inspect_checkpoint(file).problems == (f"{file}: not a safetensors file, or a broken one",)


@pytest.mark.parametrize("name", ["dream.sft", "dream.SAFETENSORS", "dream"])
def test_a_file_under_another_name_is_told_its_own(tmp_path: Path, name: str) -> None:
    denoiser_file(tmp_path / "x.safetensors").rename(tmp_path / name)
    problems = inspect_checkpoint(tmp_path / name, flux_folder(tmp_path / "flux")).problems
    assert problems == (f"{tmp_path / name}: a .safetensors file under another name: call it dream.safetensors",)


def test_one_of_several_shards_is_no_checkpoint(tmp_path: Path) -> None:
    file = denoiser_file(tmp_path / "flux-00001-of-00003.safetensors")
    (problem,) = inspect_checkpoint(file).problems
    assert "one of several files of a model: name their folder, with the key `denoiser`" in problem
    assert nearest_base(WeightFile(file), [CheckpointFolder(flux_folder(tmp_path / "flux"))]) is None


def test_a_folder_in_place_of_a_file_is_no_weights(tmp_path: Path) -> None:
    folder = flux_folder(tmp_path / "flux")
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()
    assert f"{folder / WEIGHTS}: it can't be read: Is a directory" in inspect_checkpoint(folder).problems


def test_a_download_that_aria2_has_not_finished_is_refused(tmp_path: Path) -> None:
    """It has its full length from the beginning, and zeros for what is to come."""
    folder = flux_folder(tmp_path / "flux")
    (folder / f"{WEIGHTS}.aria2").write_bytes(b"x")
    (problem,) = inspect_checkpoint(folder).problems
    assert "a download that is not finished" in problem
    with pytest.raises(CheckpointError, match="a download that is not finished"):
        estimate_bytes(CheckpointSpec("flux", folder, None, "alpha", "img2img", 1), 4)


def test_types_of_gguf_that_the_library_does_not_multiply_out_are_named(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "x.gguf")
    content = file.read_bytes()
    place = content.index(b"double_blocks.0.weight") + len(b"double_blocks.0.weight") + 4 + 2 * 8
    file.write_bytes(content[:place] + (18).to_bytes(4, "little") + content[place + 4 :])
    problems = inspect_checkpoint(file, flux_folder(tmp_path / "flux")).problems
    assert f"{file}: double_blocks.0.weight is of IQ3_XXS, which is not supported: use a file of Q8_0" in problems[0]


def test_a_gguf_header(tmp_path: Path) -> None:
    header = read_header(gguf_file(tmp_path / "x.gguf"))
    assert header.metadata == {"general.architecture": "flux", "list": [1, 2, 3]}
    assert [(t.name, t.dtype, t.shape, t.bytes) for t in header.tensors] == [
        ("double_blocks.0.weight", "Q8_0", (32, 32), 1088)
    ]
    (tmp_path / "x.gguf").write_bytes((tmp_path / "x.gguf").read_bytes()[:-1])
    with pytest.raises(BrokenFile, match="truncated"):
        read_header(tmp_path / "x.gguf")


def test_a_hub_cache_folder_is_followed_by_its_refs(tmp_path: Path) -> None:
    cache = tmp_path / "models--x--y"
    for snapshot in ("111", "222"):
        flux_folder(cache / "snapshots" / snapshot)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("222\n")
    assert find_snapshot(cache) == cache / "snapshots" / "222"
    assert inspect_checkpoint(cache).problems == ()
    (cache / "refs" / "main").unlink()
    assert find_snapshot(cache) == cache / "snapshots" / "111"
    assert find_snapshot(tmp_path) == tmp_path


def test_the_base_of_a_denoiser_has_as_many_weights(tmp_path: Path) -> None:
    folder, other = flux_folder(tmp_path / "flux"), flux_folder(tmp_path / "other")
    denoiser_file(other / "transformer/diffusion_pytorch_model.safetensors", 2000)
    file = denoiser_file(tmp_path / "fine-tune.safetensors")
    found = find_bases(WeightFile(file), [CheckpointFolder(other), CheckpointFolder(folder)])
    assert [each.path for each in found] == [folder]
    found = inspect_checkpoint(file, folder)
    assert found.problems == ()
    assert (found.class_name, found.weights) == ("FluxPipeline", 1110)
    assert "neither a diffusers folder" in inspect_checkpoint(file).problems[0]


def test_gguf_weights_stay_as_they_are_on_the_device(tmp_path: Path) -> None:
    folder = flux_folder(tmp_path / "flux")
    found = inspect_checkpoint(gguf_file(tmp_path / "x.gguf"), folder)
    assert found.problems == ()
    assert found.device_bytes(2) == 1088 + 2 * 110


@pytest.mark.parametrize(
    ("index", "configs", "card", "steps", "guidance", "found"),
    [
        ({}, {}, "", 28, 3.5, "the default of FluxPipeline"),
        ({}, {"transformer": {"guidance_embeds": False}}, "", 4, 1.0, "guidance_embeds is false"),
        ({}, {}, "pipe(prompt, num_inference_steps=12, guidance_scale=2.5)", 12, 2.5, "README.md"),
        ({"_class_name": "QwenImagePipeline"}, {}, "", 50, 4.0, "the default of QwenImagePipeline"),
        ({"_class_name": "Flux2KleinPipeline", "is_distilled": True}, {}, "", 4, 1.0, "is_distilled"),
        (
            {"_class_name": "StableDiffusionXLPipeline"},
            {"scheduler": {"timestep_spacing": "trailing", "prediction_type": "epsilon"}},
            "", 4, 1.0, "timestep_spacing is trailing",
        ),
        (
            {"_class_name": "StableDiffusionXLPipeline"},
            {"scheduler": {"_class_name": "LCMScheduler", "original_inference_steps": 50}},
            "", 4, 1.0, "the scheduler is LCMScheduler",
        ),
    ],
)  # fmt: skip
def test_steps_and_guidance_come_from_the_checkpoint(
    tmp_path: Path, index: Any, configs: Any, card: str, steps: int, guidance: float, found: str
) -> None:
    folder = flux_folder(tmp_path / "flux", index={**INDEX, **index}, **configs)
    (folder / "README.md").write_text(card)
    suggested = suggest(inspect_checkpoint(folder))
    assert (suggested.steps.value, suggested.guidance.value) == (steps, guidance)
    assert found in suggested.steps.found


def test_a_single_file_without_a_card_goes_by_that_of_its_folder(tmp_path: Path) -> None:
    base = flux_folder(tmp_path / "base", index={**INDEX, "_class_name": "ZImagePipeline"})
    (tmp_path / "files").mkdir()
    file = denoiser_file(tmp_path / "files" / "tuned.safetensors")

    def suggested(**beside: Path) -> list[tuple[float, str]]:
        found = suggest(inspect_checkpoint(file, **beside))
        return [(value.value, value.found) for value in (found.steps, found.guidance)]

    unchecked = "the default of ZImagePipeline, not checked for distillation"
    assert suggested(base=base) == [(50, unchecked), (5.0, unchecked)]
    (base / "README.md").write_text("pipe(prompt, num_inference_steps=9, guidance_scale=0.0)")
    assert suggested(base=base) == [(9, "README.md of the base: check it"), (0.0, "README.md of the base: check it")]
    of_configs = "README.md of the folder of configs: check it"
    assert suggested(config=base) == [(9, of_configs), (0.0, of_configs)]
    (file.parent / "README.md").write_text("pipe(prompt, num_inference_steps=12)")
    assert suggested(base=base) == [(12, "README.md of the checkpoint"), (0.0, "README.md of the base: check it")]


@pytest.mark.parametrize(
    ("class_name", "configs", "side_px"),
    [
        ("FluxPipeline", {}, 1024),  # 128 latents, by the class
        ("StableDiffusionPipeline", {"transformer": {"sample_size": 64}}, 512),
        ("StableDiffusionPipeline", {"transformer": {"sample_size": [96, 96]}}, 768),
        ("SanaPipeline", {"vae": {"encoder_block_out_channels": [1] * 6}}, 1024),  # by the call
    ],
)
def test_the_native_area_is_what_the_class_draws_without_a_size(
    tmp_path: Path, class_name: str, configs: Any, side_px: int
) -> None:
    folder = flux_folder(tmp_path / "flux", index={**INDEX, "_class_name": class_name}, **configs)
    assert suggest(inspect_checkpoint(folder)).native_area_px.value == side_px**2


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "transformer/config.json").unlink(), "transformer/config.json: missing"),
        (lambda folder: (folder / "transformer/config.json").write_text("{"), "config.json: not valid JSON"),
        (lambda folder: (folder / WEIGHTS).unlink(), "transformer: no weights"),
        (lambda folder: (folder / WEIGHTS).rename(folder / "transformer/a.bin"), "no weights but a.bin, which can run"),
        (
            lambda folder: (folder / WEIGHTS).write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
            "git lfs pull",
        ),
        (lambda folder: relink(folder / WEIGHTS), "a link to a file that is missing"),
        (lambda folder: relink(folder / "model_index.json"), "a link to a file that is missing"),
    ],
)
def test_loading_says_what_inspecting_says(tmp_path: Path, damage: Callable[[Path], Any], said: str) -> None:
    folder = flux_folder(tmp_path / "flux")
    damage(folder)
    assert said in "; ".join(inspect_checkpoint(folder).problems)
    with pytest.raises(CheckpointError, match=re.escape(said)):
        estimate_bytes(CheckpointSpec("flux", folder, None, "alpha", "img2img", 1), 4)


@pytest.mark.parametrize("name", ["sd_xl_base_1.0.safetensors", "flux1-dev-Q4_0.gguf"])
def test_a_folder_around_one_file_names_the_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "README.md").write_text("x")
    assert inspect_checkpoint(tmp_path).problems[0].endswith(f"for a file in it, name the file: {tmp_path / name}")


def test_pickles_in_one_file_and_downloads_without_a_snapshot_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt").write_bytes(b"x")
    assert "a pickle, which can run code" in inspect_checkpoint(tmp_path / "model.ckpt").problems[0]
    (tmp_path / "models--a--b" / "snapshots").mkdir(parents=True)
    assert "a download without a snapshot" in inspect_checkpoint(tmp_path / "models--a--b").problems[0]


def relink(file: Path) -> None:
    """As a snapshot whose blobs were not copied."""
    file.unlink()
    file.symlink_to("nowhere")
