"""Textual-inversion embeddings of a folder: words in prompts, in the layouts that trainers publish."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.images import CheckpointSpec, Runtime, SamplingDefaults
from tests.engines.device import DEVICE
from tests.support.image_jobs import image_job
from tests.support.tiny_families import make_family

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    for name in ("sd15", "sdxl", "z-image"):
        make_family(name, folder / name)
    return folder


def spec_of(path: Path, embeddings: Path | None = None) -> CheckpointSpec:
    return CheckpointSpec(
        name="x", path=path, config=None, family="alpha", conditioning="img2img", max_references=1,
        native_area_px=64 * 64, max_area_px=96 * 96, sampling=SamplingDefaults(guidance=2.0),
        runtime=Runtime(embedding_folder=embeddings),
    )  # fmt: skip


def draw(checkpoint: Checkpoint, prompt: str) -> Pixels:
    row = Row(image_job(checkpoint.spec, prompt=prompt), 0, 0.0)
    return ImagePipeline(checkpoint, row, lambda _: None, PreviewMap()).generate().astype(int)


def widths(checkpoint: Checkpoint) -> list[int]:
    encoders = [part for name, part in checkpoint.components.items() if name.startswith("text_encoder")]
    return [encoder.get_input_embeddings().weight.shape[1] for encoder in encoders]


@pytest.mark.parametrize("layout", ["emb_params", "<cat>", "one vector"])
def test_an_embedding_is_a_word_of_prompts(families: Path, tmp_path: Path, layout: str) -> None:
    plain = load_checkpoint(spec_of(families / "sd15"), DEVICE)
    (width,) = widths(plain)
    torch.manual_seed(0)
    vectors = torch.randn(width) if layout == "one vector" else torch.randn(3, width)
    save_file({"emb_params" if layout == "one vector" else layout: vectors}, tmp_path / "cat.safetensors")
    (tmp_path / "._cat.safetensors").write_bytes(b"\x00\x05\x16\x07Mac OS X")
    checkpoint = load_checkpoint(spec_of(families / "sd15", tmp_path), DEVICE)
    tokens = "1 token" if layout == "one vector" else "3 tokens"
    assert f"the embedding <cat> takes {tokens} of a prompt, in text_encoder" in checkpoint.notes
    assert (draw(checkpoint, "a cat") == draw(plain, "a cat")).all(), "prompts without the word are as before"
    assert (draw(checkpoint, "a <cat>") != draw(plain, "a <cat>")).any()
    tokenizer: Any = checkpoint.components["tokenizer"]
    words = checkpoint.pipeline().maybe_convert_prompt("<cat>", tokenizer)
    ids = tokenizer(words, add_special_tokens=False).input_ids
    found = checkpoint.components["text_encoder"].get_input_embeddings().weight[ids]
    torch.testing.assert_close(found.detach().cpu(), torch.atleast_2d(vectors).to(found.dtype))


def test_two_text_encoders_get_the_vectors_of_their_names(families: Path, tmp_path: Path) -> None:
    plain = load_checkpoint(spec_of(families / "sdxl"), DEVICE)
    one, two = widths(plain)
    torch.manual_seed(0)
    save_file({"clip_l": torch.randn(2, one), "clip_g": torch.randn(2, two)}, tmp_path / "style.safetensors")
    checkpoint = load_checkpoint(spec_of(families / "sdxl", tmp_path), DEVICE)
    assert "the embedding <style> takes 2 tokens of a prompt, in text_encoder and text_encoder_2" in checkpoint.notes
    for number, key in (("", "clip_l"), ("_2", "clip_g")):
        tokenizer, encoder = (checkpoint.components[f"{part}{number}"] for part in ("tokenizer", "text_encoder"))
        ids = [tokenizer.convert_tokens_to_ids(word) for word in ("<style>", "<style>_1")]
        vectors = load_file(tmp_path / "style.safetensors")[key]
        found = encoder.get_input_embeddings().weight[ids].detach().cpu()
        torch.testing.assert_close(found, vectors.to(found.dtype))
    assert (draw(checkpoint, "in <style>") != draw(plain, "in <style>")).any()


@pytest.mark.parametrize(
    ("family", "weights", "message"),
    [
        ("sd15", {"emb_params": torch.zeros(2, 9)}, "its vectors have 9 numbers, and the text encoders here 32"),
        (
            "sd15",
            {"clip_l": torch.zeros(2, 32), "clip_g": torch.zeros(2, 64)},
            "trained for another kind of checkpoint",
        ),
        ("sd15", {"a.lora_down.weight": torch.zeros(2, 9), "a.lora_up.weight": torch.zeros(9, 2)}, "a LoRA adapter"),
        ("z-image", {"emb_params": torch.zeros(2, 9)}, "ZImagePipeline takes no embeddings"),
    ],
)
def test_what_can_not_be_used_is_refused_with_the_reason(
    families: Path, tmp_path: Path, family: str, weights: dict[str, torch.Tensor], message: str
) -> None:
    save_file(weights, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=rf"runtime\.embedding_folder: .*{message}"):
        load_checkpoint(spec_of(families / family, tmp_path), DEVICE)


def test_vectors_that_are_not_numbers_are_refused_and_pickles_are_named(families: Path, tmp_path: Path) -> None:
    (width,) = widths(load_checkpoint(spec_of(families / "sd15"), DEVICE))
    (tmp_path / "old.pt").write_bytes(b"PK")
    checkpoint = load_checkpoint(spec_of(families / "sd15", tmp_path), DEVICE)
    assert any("old.pt: a pickle, which can run code, so it is not read" in note for note in checkpoint.notes)
    save_file({"emb_params": torch.full((2, width), float("nan"))}, tmp_path / "cat.safetensors")
    with pytest.raises(CheckpointError, match=r"cat\.safetensors: it has vectors that are not numbers"):
        load_checkpoint(spec_of(families / "sd15", tmp_path), DEVICE)
