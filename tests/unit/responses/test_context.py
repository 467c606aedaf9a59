"""What the chat model is shown of a chain, and which image is the newest."""

import json
from typing import Any

from server.accounts.response_items import StoredItem
from server.flows.responses.context import IMAGE_TOOL_SUCCESS, ImageRef, build_context, last_user_text, newest_images
from server.flows.responses.items import to_stored, user_text
from server.schemas.response_items import FunctionCallItem, FunctionOutputItem, InputImage, InputText, MessageItem

URI = "data:image/png;base64,AAAA"


def image(name: str, prompt: str, action: str = "generate") -> StoredItem:
    body = {"id": f"ig_{name}", "type": "image_generation_call", "revised_prompt": prompt, "action": action}
    return StoredItem("output", body, f"{name}.png")


def said(role: Any, *parts: Any) -> StoredItem:
    return to_stored(MessageItem(type="message", role=role, content=list(parts)))


def test_a_round_reads_as_the_chat_that_it_was() -> None:
    items = [
        user_text("draw a boat"),
        image("a", "a boat"),
        said("assistant", InputText(type="input_text", text="!")),
    ]
    system, user, call, result, closing = build_context(items, "be kind", tools=True, vision=False).messages
    assert system == {"role": "system", "content": "be kind"}
    assert user == {"role": "user", "content": "draw a boat"}
    (made,) = call["tool_calls"]
    assert made["function"]["name"] == "image_generation"
    assert json.loads(made["function"]["arguments"]) == {"prompt": "a boat", "action": "generate"}
    assert result == {"role": "tool", "tool_call_id": "ig_a", "content": IMAGE_TOOL_SUCCESS}
    assert closing == {"role": "assistant", "content": "!"}


def test_a_failed_image_is_an_error_in_the_prompt() -> None:
    body = {"id": "ig_a", "type": "image_generation_call", "error": {"message": "refused"}}
    messages = build_context([StoredItem("output", body)], None, tools=True, vision=False).messages
    assert messages[-1]["content"] == "error: refused"


def test_words_stand_for_images_where_a_model_is_blind() -> None:
    shown = said(
        "user", InputImage(type="input_image", image_url=URI), InputText(type="input_text", text="make it red")
    )
    blind = build_context([shown], None, tools=True, vision=False)
    assert blind.messages[0]["content"] == "[image]\nmake it red"
    assert blind.images == ()
    seeing = build_context([shown], None, tools=True, vision=True)
    assert [part["type"] for part in seeing.messages[0]["content"]] == ["image_url", "text"]
    assert seeing.images == (ImageRef(URI, is_file=False),)
    assert last_user_text(blind.messages) == "make it red"


def test_calls_that_were_made_together_are_one_message() -> None:
    calls = [
        to_stored(FunctionCallItem(type="function_call", call_id=name, name="look", arguments="{}")) for name in "ab"
    ]
    outputs = [to_stored(FunctionOutputItem(type="function_call_output", call_id=n, output="ok")) for n in "ab"]
    messages = build_context([user_text("x"), *calls, *outputs], None, tools=True, vision=False).messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["a", "b"]


def test_a_model_without_tools_is_not_shown_calls() -> None:
    messages = build_context([image("a", "a boat")], None, tools=False, vision=False).messages
    assert messages == ({"role": "assistant", "content": "[image]"},)


def test_the_newest_images_are_the_last_that_were_drawn_or_sent() -> None:
    sent = said("user", InputImage(type="input_image", image_url=URI), InputText(type="input_text", text="x"))
    drawn, shown = ImageRef("a.png", is_file=True), ImageRef(URI, is_file=False)
    assert [*newest_images([user_text("x")])] == []
    assert [*newest_images([sent, image("a", "x"), user_text("y")])] == [drawn, shown]
    assert [*newest_images([image("a", "x"), sent])] == [shown, drawn]
