"""Which adapters of a folder warmup withdraws, by what an engine would answer to each probe."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.warmup.adapter_checks import LEFT_BEHIND, MAX_ADAPTERS, AdapterChecker
from pipelines.protocol.images import CheckpointSpec, EncodedImage, ImageJob, Runtime
from pipelines.protocol.messages import Capabilities
from tests.support.image_jobs import image_job

ALL = Capabilities(
    text=True, references=16, mask=True, second_pass=True, negative_prompt=True, guidance=True, any_steps=True
)
Answer = Callable[[ImageJob, int], int | str | None]  # the job and its number: a light, None for one colour, an error


class Engine:
    """Draws a dot whose light `answer` says."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.jobs: list[ImageJob] = []
        self.refused: list[str] = []

    async def draw(self, job: ImageJob) -> tuple[EncodedImage, ...] | str:
        light = self.answer(job, len(self.jobs))
        self.jobs.append(job)
        if isinstance(light, str):
            return light
        image = Image.new("L", (8, 8), 0)
        if light is not None:
            image.putpixel((0, 0), light)
        image.save(file := io.BytesIO(), "PNG")
        return (EncodedImage(file.getvalue(), "image/png", 8, 8, 0),)

    async def find(self, folder: Path) -> Capabilities:
        spec = CheckpointSpec("x", Path("x"), None, "beta", "native", 16, runtime=Runtime(lora_folder=folder))
        return await AdapterChecker(
            spec, self.draw, image_job(spec), lambda file, _: self.refused.append(file.stem)
        ).find(ALL)


def by_name(lights: dict[str, int | str | None]) -> Answer:
    return lambda job, _: lights[job.sampling.loras[0][0]] if job.sampling.loras else 9


def offer(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / f"{name}.safetensors").touch()
    return folder


async def test_an_empty_folder_is_not_tried(tmp_path: Path) -> None:
    engine = Engine(by_name({}))
    assert await engine.find(tmp_path) == ALL
    assert not engine.jobs


@pytest.mark.parametrize(
    ("light", "why"),
    [("no layer", "no layer"), (None, "its images have one colour"), (9, "it changes nothing")],
)
async def test_what_does_not_fit_is_withdrawn_alone(tmp_path: Path, light: int | str | None, why: str) -> None:
    both, alone = tmp_path / "both", tmp_path / "alone"
    both.mkdir()
    alone.mkdir()
    found = await Engine(by_name({"bad": light, "good": 50})).find(offer(both, "good", "bad"))
    assert found.unsupported_adapters == ("bad",)
    assert [str(each) for each in found.failed_checks] == [f"the adapter bad: {why}"]
    with pytest.raises(CheckpointError, match=rf"no adapter in .* fits x: bad: {why}"):
        await Engine(by_name({"bad": light})).find(offer(alone, "bad"))


async def test_a_subtle_adapter_is_tried_at_the_most_that_a_call_may(tmp_path: Path) -> None:
    def answer(job: ImageJob, _: int) -> int:
        return 10 if job.sampling.loras[:1] == (("subtle", 4.0),) else 9

    assert await Engine(answer).find(offer(tmp_path, "subtle")) == ALL


async def test_one_after_which_the_model_draws_another_image_is_refused(tmp_path: Path) -> None:
    """And the weights are loaded anew, so that the next one is tried on the model."""
    changed = False

    def answer(job: ImageJob, _: int) -> int:
        nonlocal changed
        if job.sampling.loras:
            changed = job.sampling.loras[0][0] == "a-odd"
            return 70
        return 80 if changed else 9

    engine = Engine(answer)
    found = await engine.find(offer(tmp_path, "a-odd", "good"))
    assert engine.refused == ["a-odd"]
    assert found.unsupported_adapters == ("a-odd",)
    assert found.failed_checks[0].why == LEFT_BEHIND


async def test_a_checkpoint_that_never_draws_the_same_shows_nothing(tmp_path: Path) -> None:
    engine = Engine(lambda _, number: number)
    assert await engine.find(offer(tmp_path, "good")) == ALL
    assert engine.refused == []


async def test_of_many_adapters_some_are_left_to_their_calls(tmp_path: Path) -> None:
    names = [f"{number:02}" for number in range(MAX_ADAPTERS + 1)]
    engine = Engine(lambda job, _: "no" if job.sampling.loras else 9)
    found = await engine.find(offer(tmp_path, *names))
    assert found.unsupported_adapters == tuple(names[:-1])
    assert replace(found, unsupported_adapters=(), failed_checks=()) == ALL
