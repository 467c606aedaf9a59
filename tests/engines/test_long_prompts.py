"""Prompts against what text encoders read: what is counted, what is cut, and what of it reaches the denoiser."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.denoising.step_observer import Pixels
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.prompts.reading import PromptTooLong, reading, watch
from pipelines.images.scheduling.batching import Row
from pipelines.images.tasks import UnsupportedTask
from pipelines.protocol.images import CheckpointSpec, Failed, Finished, ImageJob, SamplingDefaults
from tests.engines.conftest import plain_image, split_image
from tests.engines.device import DEVICE
from tests.engines.shared_passes import difference, drawn, drawn_together, last_event
from tests.support.image_jobs import image_job, with_fields
from tests.support.tiny_families import make_family
from tests.support.tiny_families.parts import qwen_tokenizer
from tests.support.tiny_families.qwen import qwen_vl

NATIVE = {"klein", "instruct-pix2pix", "glm-image"}
SHORT, NEGATIVE = "A red boat", "blurred"
TAILS = (" and a big yellow house", " at night, no boat")
# The prompt's tokens that each encoder reads, by hand: its limit without special tokens and the template's
ROOM = {
    "sd15": {"tokenizer": 75},
    "instruct-pix2pix": {"tokenizer": 75},
    "sdxl": {"tokenizer": 75, "tokenizer_2": 75},
    "sd3": {"tokenizer": 75, "tokenizer_2": 75, "tokenizer_3": 255},
    "flux": {"tokenizer": 75, "tokenizer_2": 511},
    "chroma": {"tokenizer": 511},
    "qwen-image": {"tokenizer": 512},  # of 1024 that are tokenized, the pipeline keeps as many
    "z-image": {"tokenizer": 512 - len("#user\n#\n#assistant\n")},  # a byte is a token, as is a mark
    "klein": {"tokenizer": 512 - len("#user\n#\n#assistant\n")},
    "cogview4": {"tokenizer": 1023},
    "aura-flow": {"tokenizer": 255},
    "lumina2": {"tokenizer": 256 - 148 - len(" <Prompt Start> ")},  # a system prompt of 148 letters,
    "glm-image": {"processor": None},
}
CHUNKED = {"sd15", "sdxl", "sd3", "flux", "chroma", "qwen-image"}


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    folder = tmp_path_factory.mktemp("families")
    made: dict[str, Checkpoint] = {}

    def load(name: str) -> Checkpoint:
        if name not in made:
            made[name] = load_checkpoint(family_spec(name, folder), DEVICE)
        made[name].prompts.clear()
        return made[name]

    return load


def family_spec(name: str, folder: Path) -> CheckpointSpec:
    native = name in NATIVE
    return CheckpointSpec(
        name=name, path=make_family(name, folder / name), config=None, family="alpha",
        conditioning="native" if native else "img2img", max_references=1, native_area_px=64 * 64, max_area_px=96 * 96,
        sampling=SamplingDefaults(guidance=2.0, refine_strength=0.5),
    )  # fmt: skip


def draw(checkpoint: Checkpoint, prompt: str, **fields: Any) -> tuple[Pixels, dict[str, Any]]:
    """An image, and what its run found."""
    references = (plain_image(),) if checkpoint.spec.name == "instruct-pix2pix" else ()
    job = image_job(checkpoint.spec, **{"prompt": prompt, "references": references, **fields})
    if checkpoint.capabilities.negative_prompt and "negative_prompt" not in fields:
        job = with_fields(job, negative_prompt=NEGATIVE)
    checkpoint.begin_run(job.sampling)
    row = Row(job, 0, 0.0)
    return ImagePipeline(checkpoint, row, lambda _: None, PreviewMap()).generate(), row.found


def tokens(checkpoint: Checkpoint, encoder: str, text: str) -> int:
    part = checkpoint.components[encoder]
    return len(getattr(part, "tokenizer", part)(text, add_special_tokens=False)["input_ids"])


def too_long(checkpoint: Checkpoint, encoder: str, limit: int) -> str:
    """A text whose last word begins beyond the limit, in lower case."""
    text = "a red boat"
    while tokens(checkpoint, encoder, text) <= limit:
        text += " on calm water"
    return text


@contextmanager
def tokens_read(checkpoint: Checkpoint, encoder: str = "text_encoder") -> Iterator[list[list[int]]]:
    """The first row of tokens of each forward pass of an encoder."""
    rows: list[list[int]] = []

    def note(_: Any, args: Any, kwargs: Any) -> None:
        rows.append((args[0] if args else kwargs["input_ids"])[0].tolist())

    hook = checkpoint.components[encoder].register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield rows
    finally:
        hook.remove()


@contextmanager
def embeddings_seen(checkpoint: Checkpoint) -> Iterator[list[torch.Tensor]]:
    """The embeddings of each forward pass of the denoiser."""
    seen: list[torch.Tensor] = []

    def note(_: Any, args: Any, kwargs: Any) -> None:
        seen.append(kwargs["encoder_hidden_states"].clone())

    hook = checkpoint.denoiser.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


@pytest.mark.daily("sd15", "sd3", "flux", "qwen-image", "klein")
@pytest.mark.parametrize("name", ROOM)
def test_each_encoder_tells_how_many_tokens_of_the_prompt_it_read(
    name: str, family: Callable[[str], Checkpoint]
) -> None:
    checkpoint = family(name)
    _, found = draw(checkpoint, SHORT)
    expected = {
        encoder: {"used": tokens(checkpoint, encoder, SHORT), **({} if room is None else {"of": room})}
        for encoder, room in ROOM[name].items()
    }
    last = list(expected)[-1]  # it has the most room
    assert {**found["prompt_tokens"], "encoders": None} == {**expected[last], "encoders": None}
    assert found["prompt_tokens"].get("encoders", expected) == expected
    negative = found.get("negative_prompt_tokens")
    assert (negative is not None) == checkpoint.capabilities.negative_prompt
    assert negative is None or negative["used"] == tokens(checkpoint, last, NEGATIVE)
    assert draw(checkpoint, SHORT)[1] == found  # the embeddings were kept


@pytest.mark.parametrize("name", [name for name, rooms in ROOM.items() if all(rooms.values())])
def test_what_lies_beyond_the_limit_changes_no_pixel_and_is_told(
    name: str, family: Callable[[str], Checkpoint]
) -> None:
    checkpoint = family(name)
    encoder, room = list(ROOM[name].items())[-1]
    assert room is not None
    text = too_long(checkpoint, encoder, room)
    images = []
    for tail in TAILS:
        pixels, found = draw(checkpoint, text + tail)
        images.append(pixels)
        told = found["prompt_tokens"]
        total = tokens(checkpoint, encoder, text + tail)
        best = told.get("encoders", {}).get(encoder, told)
        assert (best["used"], best["of"], best["cut"]) == (room, room, total - room)
        kept = (text + tail)[: best["cut_at"]]
        assert tokens(checkpoint, encoder, kept) <= room < tokens(checkpoint, encoder, kept + (text + tail)[len(kept)])
    assert np.array_equal(*images)
    assert not np.array_equal(draw(checkpoint, "a green" + text[5:])[0], images[0])  # the head is read


@pytest.mark.parametrize("name", sorted(CHUNKED))
def test_all_of_a_long_prompt_changes_the_image_where_it_is_asked_for(
    name: str, family: Callable[[str], Checkpoint]
) -> None:
    checkpoint = family(name)
    assert "chunk" in checkpoint.capabilities.long_prompts
    assert np.array_equal(draw(checkpoint, SHORT, long_prompt="chunk")[0], draw(checkpoint, SHORT)[0])
    encoder, room = list(ROOM[name].items())[-1]
    if name in {"flux", "chroma"}:  # they read up to their longest as it is
        return
    text = too_long(checkpoint, encoder, room or 0)
    (one, found), (other, _) = (draw(checkpoint, text + tail, long_prompt="chunk") for tail in TAILS)
    assert not np.array_equal(one, other)
    reached = found["prompt_tokens"].get("encoders", {}).get(encoder, found["prompt_tokens"])
    assert "cut" not in reached
    assert reached["used"] == tokens(checkpoint, encoder, text + TAILS[0])


@pytest.mark.parametrize("name", ["sd15", "sdxl"])
def test_windows_are_75_tokens_between_clips_special_ones_one_after_another(
    name: str, family: Callable[[str], Checkpoint]
) -> None:
    """As compel and AUTOMATIC1111 encode them, here by hand; the shorter prompt's last window is empty."""
    checkpoint = family(name)
    tokenizer, encoder = checkpoint.components["tokenizer"], checkpoint.components["text_encoder"]
    text = too_long(checkpoint, "tokenizer", 80)
    with embeddings_seen(checkpoint) as seen:
        _, found = draw(checkpoint, text, long_prompt="chunk")
    assert found["prompt_tokens"]["windows"] == found["negative_prompt_tokens"]["windows"] == 2
    rows = []
    for prompt in (NEGATIVE, text):
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        for window in (ids[:75], ids[75:]):
            row = [tokenizer.bos_token_id, *window, tokenizer.eos_token_id]
            rows.append(row + [tokenizer.pad_token_id] * (77 - len(row)))
    with torch.inference_mode():
        output = encoder(torch.tensor(rows, device=DEVICE), output_hidden_states=True)
    states = output.last_hidden_state if name == "sd15" else output.hidden_states[-2]
    expected = states.reshape(2, 2 * 77, -1)
    assert torch.allclose(seen[0][..., : expected.shape[2]], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["sd15", "sdxl", "flux", "qwen-image", "z-image", "klein"])
def test_a_prompt_that_does_not_fit_is_refused_before_a_step(name: str, family: Callable[[str], Checkpoint]) -> None:
    checkpoint = family(name)
    encoder, room = list(ROOM[name].items())[-1]
    assert room is not None
    text = too_long(checkpoint, encoder, room)
    passes: list[object] = []

    def count(*_: object) -> None:
        passes.append(None)

    hook = checkpoint.denoiser.register_forward_hook(count)
    for _ in range(2):  # the second time the embeddings are kept
        with pytest.raises(PromptTooLong, match=r"'prompt' has \d+ tokens, of which this model reads \d+"):
            draw(checkpoint, text, long_prompt="refuse")
    assert passes == []
    draw(checkpoint, SHORT, long_prompt="refuse")
    hook.remove()
    assert passes
    if checkpoint.capabilities.negative_prompt:
        with pytest.raises(PromptTooLong) as refused:
            draw(checkpoint, SHORT, negative_prompt=text, long_prompt="refuse")
        assert refused.value.field == "negative_prompt"


def test_a_prompt_that_t5_reads_whole_is_drawn_as_without_chunks(family: Callable[[str], Checkpoint]) -> None:
    checkpoint = family("sd3")
    text = too_long(checkpoint, "tokenizer", 80)
    assert np.array_equal(draw(checkpoint, text, long_prompt="chunk")[0], draw(checkpoint, text)[0])


def test_what_one_encoder_cuts_is_not_lost_while_another_reads_it(family: Callable[[str], Checkpoint]) -> None:
    checkpoint = family("flux")
    text = too_long(checkpoint, "tokenizer", 75)
    (one, found), (other, _) = (draw(checkpoint, text + tail, long_prompt="refuse") for tail in TAILS)
    told = found["prompt_tokens"]
    assert (told["used"], told["of"]) == (tokens(checkpoint, "tokenizer_2", text + TAILS[0]), 511)
    assert "cut" not in told
    assert told["encoders"]["tokenizer"]["cut"] == tokens(checkpoint, "tokenizer", text + TAILS[0]) - 75
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("name", ["z-image", "klein", "qwen-image"])
def test_a_template_keeps_its_end_and_the_prompt_its_head(name: str, family: Callable[[str], Checkpoint]) -> None:
    checkpoint = family(name)
    tokenizer = checkpoint.components["tokenizer"]
    with tokens_read(checkpoint) as short:
        draw(checkpoint, SHORT, long_prompt="tell")
    with tokens_read(checkpoint) as long:
        draw(checkpoint, too_long(checkpoint, "tokenizer", 1200))
    texts = [
        tokenizer.decode([token for token in rows[0] if token != tokenizer.pad_token_id]) for rows in (short, long)
    ]
    head, end = texts[0].split(SHORT)
    assert end.strip().endswith("assistant")
    assert texts[1].startswith(f"{head}a red boat on calm water")
    assert texts[1].endswith(end)


def test_a_tokenizer_that_cuts_at_the_start_keeps_the_head(spec: Callable[[str], CheckpointSpec]) -> None:
    """As the tokenizer of starter-beta, whose template ends with tokens of its own."""
    checkpoint = load_checkpoint(spec("klein"), DEVICE)
    tokenizer = checkpoint.components["tokenizer"]
    body = too_long(checkpoint, "tokenizer", 600)
    (one, found), (other, _) = (
        draw(checkpoint, head + body) for head in ("a big yellow house, ", "three black trees, ")
    )
    assert not np.array_equal(one, other)
    slots = tokens(checkpoint, "tokenizer", tokenizer.apply_chat_template([{"content": ""}], tokenize=False))
    assert slots == 5
    assert found["prompt_tokens"]["used"] == 512 - slots
    with tokens_read(checkpoint) as rows:
        draw(checkpoint, body + "!")
    assert rows[0][-slots:] == tokenizer("<|change|><|scenery|><|left|><|centre|><|right|>")["input_ids"]


@pytest.mark.parametrize("text", ["a red boat 'HELLO' on calm water " * 20, "a red boat on calm water " * 40])
def test_a_class_that_splits_the_prompt_and_cuts_the_pieces_tells_it(text: str) -> None:
    """LongCat-Image tokenizes what is quoted letter by letter, and cuts the list."""
    tokenizer = qwen_tokenizer()
    parts = dict.fromkeys(("scheduler", "vae", "text_processor", "transformer"))
    pipeline = diffusers.LongCatImagePipeline(tokenizer=tokenizer, text_encoder=qwen_vl(tokenizer), **parts)
    watch({"tokenizer": tokenizer})
    for prompt in (text, text[:200]):
        with reading({"prompt": prompt}, "tell") as reader, torch.inference_mode():
            pipeline._encode_prompt([prompt])
        told = reader.found()["prompt_tokens"]
        assert (told["of"], told["used"] + told.get("cut", 0)) == (512, len(prompt.encode()))
        assert told["used"] == min(512, len(prompt))


def test_a_class_without_windows_or_a_longer_prompt_refuses_to_read_all(family: Callable[[str], Checkpoint]) -> None:
    for name in ("z-image", "klein", "instruct-pix2pix"):
        checkpoint = family(name)
        assert checkpoint.capabilities.long_prompts == ("refuse", "tell")
        with pytest.raises(UnsupportedTask) as refused:
            draw(checkpoint, SHORT, long_prompt="chunk")
        assert refused.value.param == "long_prompt"


def test_tiles_redrawn_and_masked_images_read_the_prompt_alike(family: Callable[[str], Checkpoint]) -> None:
    checkpoint = family("sd15")
    text = too_long(checkpoint, "tokenizer", 80)
    inputs: list[dict[str, Any]] = [
        {"width_px": 192, "height_px": 192},
        {"references": (split_image(upright=True),), "strength": 0.5, "steps": 4},
    ]
    for fields in inputs:
        with embeddings_seen(checkpoint) as seen:
            _, found = draw(checkpoint, text, long_prompt="chunk", **fields)
        assert found["prompt_tokens"]["windows"] == 2
        assert {embeddings.shape[1] for embeddings in seen} == {2 * 77}


@pytest.mark.nightly
async def test_rows_of_other_lengths_are_drawn_at_once_as_alone(tmp_path: Path) -> None:
    spec = family_spec("sd15", tmp_path)
    engine = ImageEngine(DEVICE)
    checkpoint = await engine.load(spec)
    text = too_long(checkpoint, "tokenizer", 80)
    jobs = [
        image_job(spec, id=f"{i}", prompt=prompt, long_prompt="chunk", seed=i)
        for i, prompt in enumerate((SHORT, text, text + TAILS[0], "a cat"))
    ]
    together = await drawn_together(engine, jobs)
    for job, event in zip(jobs, together, strict=True):
        assert difference(event, await drawn(engine, replace(job, id=f"alone-{job.id}"))) <= 1


async def test_the_answer_and_the_failure_tell_it(tmp_path: Path) -> None:
    spec = family_spec("sd15", tmp_path)
    engine = ImageEngine(DEVICE)
    capabilities = await engine.prepare(spec)
    assert (capabilities.prompt_tokens, capabilities.long_prompts) == (75, ("refuse", "tell", "chunk"))
    checkpoint = await engine.load(spec)
    job: ImageJob = image_job(spec, prompt=too_long(checkpoint, "tokenizer", 80), n=2)
    event = await last_event(engine, job)
    assert isinstance(event, Finished)
    assert event.found["prompt_tokens"]["used"] == 75
    failed = await last_event(engine, with_fields(job, long_prompt="refuse"))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.param) == ("prompt_too_long", "prompt")
    assert "of which this model reads 75" in failed.message


@pytest.mark.nightly
async def test_a_longest_prompt_that_the_denoiser_does_not_take_is_withdrawn(tmp_path: Path) -> None:
    """Lumina 2's class lets 512 tokens through; this denoiser has positions for 300."""
    engine = ImageEngine(DEVICE)
    capabilities = await engine.prepare(family_spec("lumina2", tmp_path))
    assert capabilities.long_prompts == ("refuse", "tell")
    assert "all of a long prompt: " in "; ".join(map(str, capabilities.failed_checks))
    draws = replace(family_spec("lumina2", tmp_path), sampling=SamplingDefaults(guidance=2.0, long_prompt="refuse"))
    assert (await engine.prepare(draws)).text
