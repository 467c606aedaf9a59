"""The image call of a conversation. Pure."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server.accounts.fingerprints import fingerprint
from server.catalog.images import Catalog, ImageModel
from server.errors import BadRequest
from server.flows.chat_images.conversation import ChatMessage, Drawing, drawn_images, text_of
from server.flows.images.request import ImageRequest, named_images
from server.schemas.chat import ChatBody, ChatFunction, ChatTool, TextByGrammar
from server.schemas.chat_messages import AssistantMessage, CustomCall, ImagePart, TextPart, ToolMessage
from server.schemas.images import ImageOptions, SamplingOptions
from server.schemas.response_tools import ImageTool
from server.schemas.responses import ResponseBody
from server.schemas.validation import validate


def model_of_tier(catalog: Catalog, model: ImageModel, tier: str | None, param: str) -> ImageModel:
    """Return the model of the same catalog file with this tier; the model itself without one. Raises BadRequest."""
    family = [other for other in catalog.models.values() if other.source == model.source]
    if tier is None or tier == model.tier:
        return model
    found = next((other for other in family if other.tier == tier), None)
    if found is None:
        offered = ", ".join(f"'{other.tier}'" for other in family)
        message = f"Model `{model.name}` and its family don't draw at {tier[:20]!r}. Supported values are: {offered}."
        raise BadRequest(message, param=param)
    return found


ROUTE_FIELDS = {"model", "prompt", "response_format", "stream", "partial_images"}
OPTIONS = frozenset(ImageOptions.model_fields.keys() - ROUTE_FIELDS)  # what a chat may set beside its own fields
REQUEST_FIELDS = {field.name for field in dataclasses.fields(ImageRequest)} & OPTIONS


def to_image_request(
    values: Mapping[str, Any], drawing: Drawing, model: ImageModel, endpoint: str, results_base: str
) -> ImageRequest:
    """Return the image call. `values` are options of the image routes, not validated yet. Raises BadRequest."""
    if not drawing.prompt.strip():
        message = "The last message has no text: say what to draw."
        raise BadRequest(message, param="prompt", code="string_below_min_length")
    options = validate(ImageOptions, {**values, "prompt": drawing.prompt}, strict=True)
    return ImageRequest(
        endpoint=endpoint,
        results_base=results_base,
        prompt=drawing.prompt,
        references=drawing.references,
        model=model.name,
        response_format="b64_json",
        sampling=SamplingOptions(**options.model_dump(include=set(SamplingOptions.model_fields))),
        **options.model_dump(include=REQUEST_FIELDS),
    )


def request_fingerprint(sent: Mapping[str, Any], request: ImageRequest) -> str:
    """Return the fingerprint by which a retry is matched to this call. `sent` is the caller's body."""
    fields = {field.name: (getattr(request, field.name), field.default) for field in dataclasses.fields(request)}
    for name in ("sampling", "references", "mask", "results_base"):
        fields.pop(name)
    meant = {name: value for name, (value, default) in fields.items() if value != default}
    sampling = request.sampling.model_dump(mode="json", exclude_defaults=True)
    return fingerprint(sent, {**meant, "sampling": sampling}, named_images(request))


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
