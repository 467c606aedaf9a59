"""What is drawn of a conversation, and by which model."""

from pathlib import Path
from typing import Any

import pytest

from server.catalog.images import load_catalog
from server.data_folders import REPOSITORY
from server.errors import BadRequest
from server.flows.chat_images.conversation import read_conversation
from server.flows.chat_images.image_call import model_of_tier, request_fingerprint, to_image_request, to_response
from server.http.chat_images import returns_images
from server.schemas.chat import ChatBody
from server.schemas.response_tools import ImageTool
from server.schemas.validation import validate

CATALOG = load_catalog(REPOSITORY / "model_configs", Path("/weights"))


def image(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": name}}


def user(text: str, *images: str) -> dict[str, Any]:
    return {"role": "user", "content": [*map(image, images), {"type": "text", "text": text}]}


def drawn(*images: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "images": [*map(image, images)]}


def body(*messages: Any, **fields: Any) -> ChatBody:
    return validate(ChatBody, {"messages": list(messages), **fields}, strict=True)


def read(*messages: Any, most: int = 14) -> tuple[str, list[str]]:
    drawing = read_conversation(body(*messages).messages, most)
    return drawing.prompt, [str(reference.source) for reference in drawing.references]


@pytest.mark.parametrize(
    ("messages", "references"),
    [
        ([user("a boat")], []),
        ([user("blue", "a", "b")], ["a", "b"]),
        ([user("look", "a"), {"role": "assistant", "content": "nice"}, user("blue")], ["a"]),
        ([user("boat", "a"), drawn("b"), user("blue")], ["b"]),
        ([user("boat", "a"), drawn("b"), user("with this", "c")], ["c", "b"]),
        ([drawn("a"), user("x"), drawn("b"), user("blue")], ["b"]),
        ([user("x", "a"), user("y", "b"), user("z", "c")], ["c", "b", "a"]),
    ],
)
def test_the_newest_images_are_the_references(messages: list[Any], references: list[str]) -> None:
    prompt, found = read(*messages)
    assert found == references
    assert prompt == messages[-1]["content"][-1]["text"]


RESULT = f"{'0a' * 16}.png"


@pytest.mark.parametrize(
    ("text", "references"),
    [
        (f"[image](http://127.0.0.1:8080/cdn/{RESULT})\n", [RESULT]),
        (f"Here: ![a boat](https://pictures.example/cdn/{RESULT}?w=320 'a boat') and more", [RESULT]),
        (f"[x](/cdn/{RESULT}) [again](<http://other/cdn/{RESULT}>)", [RESULT]),
        ("![boat](data:image/png;base64,AAAA)", ["data:image/png;base64,AAAA"]),
        ("![boat](https://example.com/boat.png) [page](http://10.0.0.1/admin)", []),  # never fetched
        ([{"type": "text", "text": f"[image](http://x/cdn/{RESULT})"}], [RESULT]),
        ("[](a" * 200_000 + "[](" + "a" * 200_000, []),
        ("[" * 200_000 + "[]( " + " " * 200_000, []),
    ],
)
def test_links_to_results_in_earlier_answers_are_references(text: Any, references: list[str]) -> None:
    answer = {"role": "assistant", "content": text}
    assert read(user("a boat", "a"), answer, user("blue"))[1] == (references or ["a"])
    kept = to_response(body(user("a boat"), answer, user("blue")), "starter-chat", ImageTool(type="image_generation"))
    assert sum("image" in str(item) for item in kept.input[1:]) >= len(references)  # type: ignore[index]


def test_images_of_an_answer_are_not_taken_from_its_text_too() -> None:
    assert read({**drawn("a"), "content": f"[image](http://x/cdn/{RESULT})"}, user("blue"))[1] == ["a"]


def test_earlier_images_yield_where_a_model_takes_fewer() -> None:
    assert read(user("x", "a"), user("y", "b"), user("z"), most=1)[1] == ["b"]
    assert read(user("x", "a"), user("y", "b", "c"), most=1)[1] == ["b", "c"]  # sent for this: refused, not dropped


def test_a_conversation_ends_with_the_user() -> None:
    with pytest.raises(BadRequest, match="end 'messages' with a message of the user"):
        read(user("x"), drawn("a"))


def test_instructions_are_named_as_unread() -> None:
    messages = body({"role": "system", "content": "be kind"}, user("a boat")).messages
    assert read_conversation(messages, 1).unread == ("messages[0]",)


def test_options_of_the_image_routes_are_the_calls() -> None:
    drawing = read_conversation(body(user("a boat")).messages, 1)
    model = CATALOG.models["beta-3-pro-image-count"]
    values = {"size": "16:9", "seed": 7, "num_inference_steps": 3, "n": 2}
    call = to_image_request(values, drawing, model, "chat.images", "http://x/cdn")
    assert (call.prompt, call.size, call.seed, call.n, call.sampling.steps) == ("a boat", "16:9", 7, 2, 3)
    assert (call.response_format, call.model) == ("b64_json", model.name)
    again, other = (to_image_request(values | more, drawing, model, "chat.images", "y") for more in ({}, {"seed": 8}))
    assert request_fingerprint({}, call) == request_fingerprint({}, again)
    assert request_fingerprint({}, call) != request_fingerprint({}, other)


def test_nothing_to_draw_is_refused() -> None:
    drawing = read_conversation(body(user(" ", "a")).messages, 1)
    with pytest.raises(BadRequest, match="say what to draw"):
        to_image_request({}, drawing, CATALOG.models["beta-3-pro-image-count"], "chat.images", "")


def test_a_resolution_chooses_the_model_of_the_family() -> None:
    pro, flash = (CATALOG.models[f"beta-{name}-image-count"] for name in ("3-pro", "2.5-flash"))
    assert model_of_tier(CATALOG, pro, None, "x") is pro
    assert model_of_tier(CATALOG, pro, "2K", "x").name == "beta-3-pro-image-hd-count"
    assert model_of_tier(CATALOG, CATALOG.models["beta-3-pro-image-4k-count"], "1K", "x") is pro
    with pytest.raises(BadRequest, match="Supported values are: '1K'"):
        model_of_tier(CATALOG, flash, "4K", "x")


def test_a_chat_draws_by_its_model_or_because_it_is_asked_to() -> None:
    for values, expected in (
        ({"model": "beta-3-pro-image-count"}, True),
        ({"model": "gemini-3-pro-image"}, True),
        ({"model": "gpt-4o"}, False),  # an alias of a chat model, too
        ({"model": "gpt-4o", "modalities": ["image", "text"]}, True),
        ({"modalities": ["text"]}, False),
        ({"model": "gamma"}, False),
    ):
        assert returns_images(CATALOG, values) is expected


def test_a_chat_model_gets_the_conversation_and_must_draw() -> None:
    chat = body(
        user("boat", "https://x/a.png"),
        drawn("data:image/png;base64,AAAA"),
        {"role": "user", "content": "blue"},
        max_tokens=4,
        tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    )
    response = to_response(chat, "starter-chat", ImageTool(type="image_generation", size="1:1"))
    assert [item.type for item in response.input] == ["message", "image_generation_call", "message"]  # type: ignore[union-attr]
    assert [tool.type for tool in response.tools] == ["function", "image_generation"]
    assert (response.max_output_tokens, response.store) == (16, False)
    assert response.tool_choice.type == "image_generation"  # type: ignore[union-attr]


def test_custom_tools_and_their_calls_go_with_it() -> None:
    grammar = {"syntax": "regex", "definition": "[a-z]+"}
    note = {"name": "note", "description": "Write it down", "format": {"type": "grammar", "grammar": grammar}}
    chat = body(
        user("boat"),
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "note", "input": "x"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        tools=[{"type": "custom", "custom": note}],
    )
    response = to_response(chat, "starter-chat", ImageTool(type="image_generation"))
    assert [item.type for item in response.input] == ["message", "custom_tool_call", "function_call_output"]  # type: ignore[union-attr]
    sent = response.tools[0].model_dump()
    assert sent == {"type": "custom", **note, "format": {"type": "grammar", **grammar}}
