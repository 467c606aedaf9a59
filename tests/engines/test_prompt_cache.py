"""Prompt embeddings are kept: one encoding for all images, tiles and calls of a prompt, and pixels as without."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save

from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.denoising.step_observer import Pixels
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.prompts.cache import PromptCache
from pipelines.images.scheduling.batching import Row
from pipelines.protocol.images import CheckpointSpec, ImageJob, Runtime, SamplingDefaults
from tests.engines.conftest import split_image
from tests.engines.device import DEVICE
from tests.support.image_jobs import image_job, with_fields
from tests.support.tiny_families import make_family

FAMILIES = ["sd15", "sdxl", "sd3", "flux", "qwen-image", "z-image", "klein"]
LONG = "a very long prompt about a red boat on a green lake under a blue sky"


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    folder = tmp_path_factory.mktemp("families")
    made: dict[str, Checkpoint] = {}

    def load(name: str) -> Checkpoint:
        if name not in made:
            native = name in {"klein", "qwen-image-edit"}
            made[name] = load_checkpoint(
                CheckpointSpec(
                    name=name, path=make_family(name, folder / name), config=None, family="alpha",
                    conditioning="native" if native else "img2img", max_references=16 if native else 1,
                    native_area_px=64 * 64, max_area_px=96 * 96,
                    sampling=SamplingDefaults(guidance=2.0, refine_strength=0.5),
                ),
                DEVICE,
            )  # fmt: skip
        made[name].prompts.clear()
        return made[name]

    return load


def draw(checkpoint: Checkpoint, job: ImageJob) -> list[Pixels]:
    """All images of the job."""
    checkpoint.begin_run(job.sampling)
    rows = [Row(job, index, 0.0) for index in range(job.n)]
    return [ImagePipeline(checkpoint, row, lambda _: None, PreviewMap()).generate() for row in rows]


@contextmanager
def encodings(checkpoint: Checkpoint) -> Iterator[list[int]]:
    """The batch size of each forward pass of an encoder; with one encoder, or of the first one."""
    rows: list[int] = []
    encoder = checkpoint.components["text_encoder"]

    def count(_: Any, args: Any, kwargs: Any) -> None:
        given = args[0] if args else kwargs["input_ids"]
        rows.append(len(given))

    hook = encoder.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield rows
    finally:
        hook.remove()


@pytest.mark.daily("sd15", "flux", "klein")
@pytest.mark.parametrize("name", FAMILIES)
def test_an_image_is_bit_for_bit_the_one_without_a_cache(
    name: str, family: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = family(name)
    plain = image_job(checkpoint.spec, prompt="a red boat")
    jobs = [plain, replace(plain, n=2), replace(plain, prompt="a cat in it"), replace(plain, prompt=LONG)]
    kept, again = ([draw(checkpoint, job) for job in jobs] for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(PromptCache, "attach", lambda self, pipeline: None)
        bare = [draw(checkpoint, job) for job in jobs]
    for number in range(len(jobs)):
        assert np.array_equal(kept[number], bare[number])
        assert np.array_equal(again[number], bare[number])


def test_a_prompt_is_encoded_once_for_all_images_tiles_and_calls(family: Callable[[str], Checkpoint]) -> None:
    checkpoint = family("flux")
    plain = image_job(checkpoint.spec, prompt="a red boat")
    with encodings(checkpoint) as rows:
        draw(checkpoint, replace(plain, n=3))
        assert rows == [1]
        del rows[:]
        draw(checkpoint, plain)
        draw(checkpoint, replace(plain, seed=9, width_px=192, height_px=192))  # two passes, by two pipeline classes
        draw(checkpoint, with_fields(plain, references=(split_image(upright=True),), strength=0.5))
        assert rows == []
        draw(checkpoint, replace(plain, prompt="a cat", width_px=192, height_px=192))
        assert rows == [1]


def test_an_image_of_two_passes_encoded_once_for_each_tile_without_a_cache(
    family: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the cache saves; if this fails, the test above shows nothing."""
    monkeypatch.setattr(PromptCache, "attach", lambda self, pipeline: None)
    checkpoint = family("flux")
    with encodings(checkpoint) as rows:
        draw(checkpoint, image_job(checkpoint.spec, width_px=192, height_px=192))
    assert len(rows) > 9


def test_the_least_recently_used_embeddings_are_dropped_within_the_budget(family: Callable[[str], Checkpoint]) -> None:
    checkpoint = family("sd15")
    jobs = [image_job(checkpoint.spec, prompt=prompt) for prompt in ("one", "two", "three")]
    draw(checkpoint, jobs[0])
    of_one = checkpoint.prompts.bytes
    small = replace(checkpoint, prompts=PromptCache(budget_bytes=2 * of_one))
    with encodings(small) as rows:
        for job in (jobs[0], jobs[1], jobs[0], jobs[2]):
            draw(small, job)
        assert small.prompts.bytes == 2 * of_one
        before = len(rows)
        draw(small, jobs[0])
        assert len(rows) == before
        draw(small, jobs[1])
        assert len(rows) > before


def test_embeddings_are_dropped_when_the_weights_move(family: Callable[[str], Checkpoint]) -> None:
    checkpoint = family("sd15")
    draw(checkpoint, image_job(checkpoint.spec))
    assert checkpoint.prompts.bytes > 0
    checkpoint.move(DEVICE)
    assert checkpoint.prompts.bytes == 0


def test_adapters_of_the_text_encoder_are_part_of_the_key(
    spec: Callable[[str], CheckpointSpec], adapter: Path, tmp_path: Path
) -> None:
    """Another weight, and another file of the same name, are other embeddings."""
    shutil.copy(adapter, tmp_path / "sketch.safetensors")
    checkpoint = load_checkpoint(replace(spec("sd"), runtime=Runtime(lora_folder=tmp_path)), DEVICE)
    plain = image_job(checkpoint.spec)
    with encodings(checkpoint) as rows:
        for loras, fresh in [((), True), ((("sketch", 1.0),), True), ((("sketch", 2.0),), True), ((), False)]:
            del rows[:]
            draw(checkpoint, with_fields(plain, loras=loras))
            assert bool(rows) == fresh
        other = {name: 2 * weight for name, weight in load_file(adapter).items()}
        for content, fresh in [(adapter.read_bytes(), False), (save(other), True)]:
            (tmp_path / "sketch.safetensors").write_bytes(content)
            for again in (fresh, False):
                del rows[:]
                draw(checkpoint, with_fields(plain, loras=(("sketch", 2.0),)))
                assert bool(rows) == again


class Seeing:
    """An encoder that sees images, as Qwen-Image-Edit's."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def encode_prompt(self, prompt: str | list[str], image: object = None, prompt_embeds: object = None) -> tuple[Any]:
        self.seen.append(image)
        prompts = [prompt] if isinstance(prompt, str) else prompt
        return (torch.tensor([[float(len(text)), float(np.asarray(image).sum())] for text in prompts]),)


def test_images_that_an_encoder_sees_are_part_of_the_key() -> None:
    pipeline = Seeing()
    PromptCache().attach(pipeline)
    red, also_red, blue = (Image.new("RGB", (4, 4), colour) for colour in ("red", "red", "blue"))
    (first,) = pipeline.encode_prompt("a boat", image=[red])
    assert torch.equal(pipeline.encode_prompt("a boat", image=[also_red])[0], first)
    assert len(pipeline.seen) == 1
    assert not torch.equal(pipeline.encode_prompt("a boats", image=[blue])[0], first)
    pipeline.encode_prompt("a boat", image=torch.ones(2))
    pipeline.encode_prompt("a boat", image=torch.ones(2))
    assert len(pipeline.seen) == 3


def test_what_a_caller_does_to_embeddings_does_not_change_those_that_are_kept() -> None:
    pipeline = Seeing()
    PromptCache().attach(pipeline)
    for _ in range(2):
        (embeddings,) = pipeline.encode_prompt("a boat", image=[1])
        assert embeddings[0, 0] == len("a boat")
        embeddings.zero_()
