"""A chat that draws, as the events of a chat: by an image model alone, or by a chat model with the image tool.

Both are the server's own tasks, as on their own routes: they are billed, moderated and retried there.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from typing import Any

from pipelines.protocol.chat import (
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from server.accounts.keys import Key
from server.backends.storage import Storage
from server.errors import ReplayedError, ServerStopping
from server.flows.chat.events import AnswerEvent, CallAdmitted, ImageDelta
from server.flows.chat_images.conversation import Drawing
from server.flows.images.idempotency import ImageCalls
from server.flows.images.request import ImageRequest
from server.flows.images.results import load_answer, truncated_of
from server.flows.references import ReferenceLoader
from server.flows.responses.create import ResponseCreator
from server.flows.retries import RetryInfo
from server.schemas.chat_messages import custom_arguments
from server.schemas.response_events import Event
from server.schemas.responses import ResponseBody
from server.state.active_job import ActiveJob
from server.state.active_responses import ActiveResponse

OnStart = Callable[[ActiveJob[Any]], None]


class ChatImages:
    """Runs such chats. One for the whole server. `on_start` gets the task, once it is found or begun. `links`: texts
    link the images."""

    def __init__(
        self,
        calls: ImageCalls,
        responses: ResponseCreator,
        references: ReferenceLoader,
        storage: Storage,
        *,
        links: bool,
    ) -> None:
        self._references = references
        self._calls = calls
        self._responses = responses
        self._storage = storage
        self._links = links

    async def drop_unavailable_images(self, key: Key, drawing: Drawing) -> Drawing:
        """Return the drawing without the images of earlier messages that can't be loaded any more."""
        past = [image for image in drawing.references if image.past]
        loaded = await self._references.load_shown(key.id, past)
        lost = [image for image, found in zip(past, loaded, strict=True) if found is None]
        kept = tuple(image for image in drawing.references if image not in lost)
        return replace(drawing, references=kept, unread=(*drawing.unread, *(image.field for image in lost)))

    async def draw(
        self, key: Key, request: ImageRequest, retry: RetryInfo, on_start: OnStart, *, body_begins: bool
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield one choice for each image. `body_begins`: the answer's status is sent once the call is admitted. Raises
        ApiError, also between events."""
        call = await self._calls.find_or_start(key, request, retry)
        on_start(call)
        with call.listening():
            await call.admission()
            call.response_started = call.response_started or body_begins
            yield CallAdmitted(0, job=call.call.id, replayed=call.replayed)
            result = await call.result()
            answer = await load_answer(self._storage, result)
            media_type, cut = f"image/{answer.output_format}", truncated_of(request, result)
            for index, item in enumerate(answer.data):
                link = result.answer.data[index].url if self._links else None
                yield ImageDelta(index, item.b64_json or "", media_type, link=link, truncated=cut)
                yield ChoiceFinished(index, "stop")
            yield ChatFinished(ChatUsage(answer.usage.input_tokens, answer.usage.output_tokens), 0.0)

    async def respond(
        self, key: Key, body: ResponseBody, results_base: str, retry: RetryInfo, on_start: OnStart
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield one choice with all texts, images and calls of a response. Raises ApiError, also between events."""
        response = await self._responses.find_or_start(key, body, results_base, retry)
        on_start(response)
        with response.listening():
            await response.wait_admitted()
            yield CallAdmitted(0, ignored=response.unread, job=response.call.id, replayed=response.replayed)
            images = 0
            async for event in response.follow():
                for made in _events(event, images, self._links):
                    images += isinstance(made, ImageDelta)
                    yield made
        yield ChoiceFinished(0, _end(response))
        usage = response.ended.get("usage") if response.ended else None
        yield ChatFinished(ChatUsage(usage["input_tokens"], usage["output_tokens"]) if usage else ChatUsage(0, 0), 0.0)


def _events(event: Event, images: int, links: bool) -> Iterator[AnswerEvent]:
    match event["type"]:
        case "response.output_text.delta":
            yield TextDelta(0, event["delta"])
        case "response.reasoning_text.delta":
            yield ReasoningDelta(0, event["delta"])
        case "response.output_item.done":
            item, index = event["item"], event["output_index"]
            if item["type"] == "function_call":
                yield ToolCallDelta(0, index, item["arguments"], item["call_id"], item["name"])
            if item["type"] == "custom_tool_call":
                yield ToolCallDelta(0, index, custom_arguments(item["input"]), item["call_id"], item["name"])
            if item["type"] == "image_generation_call" and item["result"]:
                link = item["url"] if links else None
                cut = item.get("truncated", "")
                yield ImageDelta(0, item["result"], f"image/{item['output_format']}", images, link, cut)


def _end(response: ActiveResponse) -> FinishReason:
    """Return why the response ended. Raises ApiError for one that failed, or that has no image because each was
    refused."""
    if response.failure is not None:
        raise response.failure
    if response.status == "cancelled":
        raise ServerStopping("The answer was stopped before its end. Please send the request again.", 2)
    images = [item for item in response.output if item["type"] == "image_generation_call"]
    refused = next((item["error"] for item in images if item.get("error")), None)
    if refused and not any(item.get("result") for item in images):
        raise ReplayedError(400, refused)
    if response.status == "incomplete":
        return "length"
    calls = any(item["type"] in {"function_call", "custom_tool_call"} for item in response.output)
    return "tool_calls" if calls else "stop"
