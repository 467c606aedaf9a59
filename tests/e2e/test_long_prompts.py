"""Prompts that are longer than what a checkpoint reads, by OpenAI's SDK."""

import base64
import io
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image

from tests.support.harness import Server, charges

pytestmark = pytest.mark.nightly

ALPHA, BETA = "alpha-image-2-count", "beta-3-pro-image-count"
BODY = "a red boat on calm water under a clear blue sky with small white clouds and soft warm light " * 5
TAILS = ("and a big yellow house on the right", "at night, no boat")


def draw(server: Server, prompt: str, model: str = ALPHA, **options: Any) -> tuple[Any, Any]:
    """The parsed answer, and the response with its headers."""
    raw = server.openai(max_retries=0).images.with_raw_response.generate(
        model=model, prompt=prompt, size="256x256", response_format="b64_json", extra_body={"seed": 3, **options}
    )
    return raw.parse(), raw


def pixels(answer: Any) -> Any:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer.data[0].b64_json))))


def limit(server: Server, model: str) -> tuple[int, list[str]]:
    with server.http() as client:
        card = client.get(f"/v1/models/{model}").raise_for_status().json()
    return card["limits"]["prompt_tokens"], card["long_prompts"]


def test_the_end_that_no_encoder_reads_is_named_in_a_header(server: Server) -> None:
    most, ways = limit(server, ALPHA)
    assert ways == ["refuse", "tell", "chunk"]
    (one, raw), (other, _) = (draw(server, BODY + tail) for tail in TAILS)
    assert np.array_equal(pixels(one), pixels(other))
    tokens = one.parameters["prompt_tokens"]
    assert (tokens["used"], tokens["of"]) == (most, most)
    total = tokens["used"] + tokens["cut"]
    assert raw.headers["x-darkroom-truncated"].startswith(f"prompt: {tokens['cut']} of {total} tokens, from ")
    assert one.parameters["long_prompt"] == "tell"
    short, plain = draw(server, "a red boat", negative_prompt=BODY)
    assert short.parameters["prompt_tokens"]["used"] < most
    assert plain.headers["x-darkroom-truncated"].startswith("negative_prompt: ")


def test_all_of_it_is_read_in_windows_where_that_is_asked_for(server: Server) -> None:
    (one, raw), (other, _) = (draw(server, BODY + tail, long_prompt="chunk") for tail in TAILS)
    assert not np.array_equal(pixels(one), pixels(other))
    assert one.parameters["prompt_tokens"]["windows"] > 1
    assert "x-darkroom-truncated" not in raw.headers


def test_it_is_refused_uncharged_where_that_is_asked_for(server: Server) -> None:
    before = charges(server)
    for options, field in (
        ({"prompt": BODY}, "prompt"),
        ({"prompt": "a boat", "negative_prompt": BODY}, "negative_prompt"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            draw(server, long_prompt="refuse", **options)
        assert (refused.value.code, refused.value.param) == ("prompt_too_long", field)
        assert f"of which this model reads {limit(server, ALPHA)[0]}" in refused.value.message
    with pytest.raises(openai.BadRequestError, match="'refuse' or 'tell'") as unable:
        draw(server, "a red boat", BETA, long_prompt="chunk")
    assert unable.value.param == "long_prompt"
    assert charges(server) == before


def test_the_head_of_a_long_prompt_is_drawn(server: Server) -> None:
    (one, raw), (other, _) = (
        draw(server, f"{head}, {BODY}{BODY}", BETA) for head in ("a yellow house", "three black trees")
    )
    assert not np.array_equal(pixels(one), pixels(other))
    assert raw.headers["x-darkroom-truncated"].startswith("prompt: ")


def test_a_form_and_a_chat_tell_it_too(server: Server) -> None:
    file = io.BytesIO()
    Image.new("RGB", (256, 256), "teal").save(file, "PNG")
    edited = server.openai().images.with_raw_response.edit(
        model=ALPHA, image=file.getvalue(), prompt=BODY, size="256x256", extra_body={"long_prompt": "tell"}
    )
    assert edited.headers["x-darkroom-truncated"].startswith("prompt: ")
    with server.http() as client:
        messages = [{"role": "user", "content": BODY}]
        answer = client.post("/v1/chat/completions", json={"model": ALPHA, "messages": messages, "size": "256x256"})
        refused = client.post(
            "/v1/chat/completions", json={"model": ALPHA, "messages": messages, "long_prompt": "refuse"}
        )
    assert answer.headers["x-darkroom-truncated"].startswith("prompt: ")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "prompt_too_long")
