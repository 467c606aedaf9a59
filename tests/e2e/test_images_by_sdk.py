"""OpenAI's Python SDK, with only its base address changed."""

import base64
import io
import re
from typing import Literal

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest
from PIL import Image

from tests.support.harness import Server, charges

SMALL = "256x256"


def image(width: int, height: int, colour: str = "teal", kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, kind)
    return file.getvalue()


def download(server: Server, url: str | None) -> Image.Image:
    assert url is not None
    return Image.open(io.BytesIO(httpx.get(url, timeout=60, trust_env=False).raise_for_status().content))


def pixels(server: Server, url: str | None) -> npt.NDArray[np.float64]:
    return np.asarray(download(server, url).convert("RGB")).astype(float)


def test_generate_returns_a_url_that_opens_without_a_key(server: Server) -> None:
    answer = server.openai().images.generate(model="alpha-image-2-count", prompt="a red boat at sunset", size=SMALL)
    assert answer.data
    assert download(server, answer.data[0].url).size == (256, 256)
    assert answer.quality == "high"
    assert answer.size == SMALL
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


@pytest.mark.parametrize(("format", "kind"), [("png", "PNG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
def test_every_output_format_is_what_it_says(server: Server, format: str, kind: str) -> None:
    answer = server.openai().images.generate(
        model="beta-2.5-flash-image-count",
        prompt="a hill",
        size=SMALL,
        response_format="b64_json",
        output_format=format,  # type: ignore[arg-type]
    )
    assert answer.data
    assert answer.data[0].url is None
    assert Image.open(io.BytesIO(base64.b64decode(answer.data[0].b64_json or ""))).format == kind
    assert answer.output_format == format


def test_two_references_are_drawn_by_another_checkpoint_under_the_same_name(server: Server) -> None:
    files = [("a.png", image(64, 64, "red")), ("b.png", image(64, 64, "blue"))]
    before = charges(server)
    answer = server.openai().images.edit(
        image=files, prompt="both", model="alpha-image-2-count", size=SMALL, quality="low"
    )
    assert answer.model_extra is not None
    used = answer.model_extra["parameters"]
    assert (used["model"], used["checkpoint"], used["steps"]) == ("alpha-image-2-count", "starter-beta", 2)
    assert charges(server) == before + 1
    assert "alpha-image-2-count  0.10" in re.sub(r"[ │┃]+", "  ", server.darkroom("ledger", "--entries", "1").stdout)


def test_the_default_model_is_used_without_a_model(server: Server) -> None:
    answer = server.openai().images.generate(prompt="a cat", size=SMALL)
    assert answer.model_extra is not None
    assert answer.model_extra["parameters"]["model"] == "alpha-image-2-count"
    assert answer.model_extra["parameters"]["batch"] == "exact", "it was the only one"


@pytest.mark.parametrize(("alias", "quality", "has_url"), [("gpt-image-1", "auto", False), ("dall-e-3", "hd", True)])
def test_names_that_clients_hard_code_answer_as_those_clients_expect(
    server: Server, alias: str, quality: Literal["auto", "hd"], has_url: bool
) -> None:
    answer = server.openai().images.generate(model=alias, prompt="a cat", size=SMALL, quality=quality)
    assert answer.quality == "high"
    assert answer.data
    assert bool(answer.data[0].url) == has_url
    assert Image.open(io.BytesIO(base64.b64decode(answer.data[0].b64_json or ""))).size == (256, 256)


def test_n_images_have_their_own_seeds_and_cost_one_price(server: Server) -> None:
    before = server.darkroom("ledger").stdout.count("img_")
    answer = server.openai().images.generate(prompt="a star", n=3, size=SMALL, extra_body={"seed": 7})
    assert answer.data
    assert [item.model_extra["seed"] for item in answer.data if item.model_extra] == [7, 8, 9]
    assert server.darkroom("ledger", "--entries", "1000").stdout.count("img_") >= before + 1
    single = server.openai().images.generate(prompt="a star", size=SMALL, extra_body={"seed": 9})
    assert single.data
    images = [pixels(server, item.url) for item in (*answer.data, *single.data)]
    assert [np.array_equal(images[3], other) for other in images[:3]] == [False, False, True]


def test_sampling_extensions_are_used_and_written_into_the_file(server: Server) -> None:
    extras = {"seed": 11, "steps": 3, "guidance": 2.5, "negative_prompt": "fog"}
    answer = server.openai().images.generate(prompt="a tree", size=SMALL, extra_body=extras)
    assert answer.model_extra is not None
    assert extras.items() <= answer.model_extra["parameters"].items()
    assert answer.data
    metadata = download(server, answer.data[0].url).info
    assert metadata["prompt"] == "a tree"
    assert {name: metadata[name] for name in extras} == {name: str(value) for name, value in extras.items()}
    assert "strength" not in metadata


def test_an_edit_reports_its_strength(server: Server) -> None:
    answer = server.openai().images.edit(prompt="a tree", image=image(256, 256), extra_body={"strength": 0.4})
    assert answer.model_extra is not None
    assert answer.model_extra["parameters"]["strength"] == 0.4
    assert answer.data
    assert download(server, answer.data[0].url).info["strength"] == "0.4"


def test_adapters_in_a_form_are_refused(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="LoRA") as raised:
        server.openai().images.edit(prompt="a tree", image=image(256, 256), extra_body={"loras": {"style": 0.8}})
    assert raised.value.param == "loras"


def test_the_default_compression_of_clients_is_no_error_with_png(server: Server) -> None:
    assert server.openai().images.generate(prompt="a tree", size=SMALL, output_compression=100).data


def test_steps_follow_quality(server: Server) -> None:
    steps = []
    for quality in ("low", "medium", "high"):
        answer = server.openai().images.generate(prompt="a tree", size=SMALL, quality=quality)  # type: ignore[arg-type]
        assert answer.model_extra is not None
        steps.append(answer.model_extra["parameters"]["steps"])
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("model", ["alpha-image-2-count", "beta-3.1-flash-image-count"])
def test_edit_takes_a_file(server: Server, model: str) -> None:
    answer = server.openai().images.edit(model=model, prompt="make it red", image=image(320, 256))
    assert answer.data
    assert download(server, answer.data[0].url).size == (320, 256)


def test_edit_takes_several_files_on_a_native_checkpoint(server: Server) -> None:
    images = [image(256, 256, "red"), image(300, 200, "blue", "JPEG"), image(256, 256, "green", "WEBP")]
    answer = server.openai().images.edit(model="beta-3-pro-image-count", prompt="all of them", image=images)
    assert answer.data
    assert download(server, answer.data[0].url).size == (256, 256)


def test_an_edit_leaves_the_unmasked_area_unchanged(server: Server) -> None:
    mask = Image.new("RGBA", (256, 256), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 128, 256))
    file = io.BytesIO()
    mask.save(file, "PNG")
    answer = server.openai().images.edit(prompt="a sea", image=image(256, 256, "orange"), mask=file.getvalue())
    assert answer.data
    edited = download(server, answer.data[0].url).convert("RGB")
    assert edited.crop((129, 0, 256, 256)).getcolors() == [(127 * 256, (255, 165, 0))]
    assert edited.crop((0, 0, 127, 256)).getcolors() != [(127 * 256, (255, 165, 0))]


def test_a_result_url_is_a_reference_of_the_next_call(server: Server) -> None:
    client = server.openai()
    url = None
    for prompt in ("a boat", "make it blue", "now at night"):
        extra = {"image": [url]} if url else {}
        answer = client.images.generate(model="beta-2.5-flash-image-count", prompt=prompt, size=SMALL, extra_body=extra)
        assert answer.data
        url = answer.data[0].url
    assert download(server, url).size == (256, 256)


def test_references_by_url_and_data_uri_mix(server: Server) -> None:
    first = server.openai().images.generate(prompt="a boat", size=SMALL)
    assert first.data
    uri = "data:image/png;base64," + base64.b64encode(image(200, 200)).decode()
    answer = server.openai().images.generate(
        model="beta-3-pro-image-count", prompt="both", extra_body={"image": [first.data[0].url, uri]}
    )
    assert answer.size == SMALL


def test_the_models_are_listed(server: Server) -> None:
    names = [model.id for model in server.openai().models.list()]
    assert len(names) == 10
    assert server.openai().models.retrieve("beta-3-pro-image-4k-count").owned_by


def test_an_image_at_its_full_1k_size(server: Server) -> None:
    answer = server.openai().images.generate(prompt="a city", size="1792x1024", quality="low")
    assert answer.data
    assert download(server, answer.data[0].url).size == (1792, 1024)


@pytest.mark.daily("beta-3.1-flash-image-hd-count-3:2-pixels0")
@pytest.mark.parametrize(
    ("model", "size", "pixels"),
    [("beta-3.1-flash-image-hd-count", "3:2", (2512, 1680)), ("beta-3.1-flash-image-4k-count", "21:9", (3840, 1648))],
)
def test_the_stored_files_of_2k_and_4k_have_exactly_the_promised_pixels(
    server: Server, model: str, size: str, pixels: tuple[int, int]
) -> None:
    answer = server.openai(timeout=280).images.generate(model=model, prompt="a city", size=size)  # type: ignore[arg-type]
    assert answer.data
    name = (answer.data[0].url or "").rpartition("/")[2]
    with Image.open(server.home / "results" / name[:2] / name) as stored:
        stored.load()
        assert stored.size == pixels
