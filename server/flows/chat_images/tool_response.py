"""A chat completion whose answer has images, as the body of a response with the image tool. Pure."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from server.flows.chat_images.conversation import ChatMessage, drawn_images, text_of
from server.schemas.chat import ChatBody
from server.schemas.chat_messages import AssistantMessage, CustomCall, ImagePart, TextPart, ToolMessage
from server.schemas.chat_tools import ChatFunction, ChatTool, TextByGrammar
from server.schemas.response_tools import ImageTool
from server.schemas.responses import ResponseBody
from server.schemas.validation import validate

Json = dict[str, Any]
DATA_URI = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
MIN_OUTPUT_TOKENS = 16  # of a response
SHARED = {"temperature", "top_p", "presence_penalty", "frequency_penalty", "stream", "service_tier"}  # with a response
IMAGE_TOOL = {"type": "image_generation"}


def to_response(body: ChatBody, model: str, tool: ImageTool) -> ResponseBody:
    """Return the response's body. It calls the image tool in any case: the caller wants an image. Raises BadRequest."""
    limit = body.max_completion_tokens or body.max_tokens
    values = {
        "model": model,
        "input": [item for index, message in enumerate(body.messages) for item in _items(message, index)],
        "tools": [*map(_client_tool, body.tools), tool.model_dump(exclude_none=True)],
        "tool_choice": IMAGE_TOOL,
        **body.model_dump(include=SHARED),
        "max_output_tokens": None if limit is None else max(MIN_OUTPUT_TOKENS, limit),
        "store": False,
    }
    return validate(ResponseBody, values, strict=True)


def _client_tool(tool: ChatTool) -> Json:
    """Return the tool in the shape of responses."""
    if isinstance(tool, ChatFunction):
        return {"type": "function", **tool.function.model_dump(exclude_none=True)}
    custom = tool.custom.model_dump(exclude_none=True, exclude={"format"})
    if isinstance(tool.custom.format, TextByGrammar):
        custom["format"] = {"type": "grammar", **tool.custom.format.grammar.model_dump()}
    return {"type": "custom", **custom}


def _items(message: ChatMessage, index: int) -> Iterator[Json]:
    if isinstance(message, ToolMessage):
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": _content(message.content)}
        return
    if isinstance(message, AssistantMessage):
        yield from _assistant_items(message, index)
        return
    yield {"role": message.role, "content": _content(message.content)}


def _assistant_items(message: AssistantMessage, index: int) -> Iterator[Json]:
    if thoughts := message.reasoning_content or message.reasoning:
        yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thoughts}]}
    if message.content:
        yield {"role": "assistant", "content": text_of(message.content)}
    for position, image in enumerate(drawn_images(message, index)):
        url = str(image.source)
        if found := DATA_URI.match(url):
            item_id = f"ig_{index}_{position}"
            yield {"type": "image_generation_call", "id": item_id, "result": url[found.end() :]}
        else:
            yield {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    for call in message.tool_calls or ():
        if isinstance(call, CustomCall):
            custom = {"call_id": call.id, "name": call.custom.name, "input": call.custom.input}
            yield {"type": "custom_tool_call", **custom}
        else:
            function = {"call_id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            yield {"type": "function_call", **function}


def _content(content: str | Sequence[TextPart | ImagePart]) -> str | list[Json]:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: TextPart | ImagePart) -> Json:
    if isinstance(part, ImagePart):
        return {"type": "input_image", "image_url": part.image_url.url}
    return {"type": "input_text", "text": part.text}
