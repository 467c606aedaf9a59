"""What one response needs to run, looked up and checked. Every field has its final value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.protocol.chat import ChatSampling, ChatSpec, JsonFormat
from pipelines.protocol.images import Picture
from pipelines.protocol.upstream import Upstream
from server.accounts.keys import Key
from server.accounts.response_items import StoredItem
from server.catalog.images import ImageModel
from server.flows.chat.run import UsageContext
from server.flows.moderation import ModerationContext
from server.flows.references import Reference
from server.flows.responses.tools import IMAGE_FUNCTION, ResponseTools, ToolMode
from server.schemas.response_object import Json
from server.schemas.response_tools import ImageTool


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """The image tool of this round."""

    tool: ImageTool
    model: ImageModel
    results_base: str
    explicit: tuple[Reference, ...]  # the pictures in the request's last user message
    newest: Reference | None  # the last picture of the chain
    mask: Reference | None
    partial_images: int


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """One response."""

    key: Key
    source: ChatSpec | Upstream
    usage_context: UsageContext
    moderation: ModerationContext
    inputs: tuple[StoredItem, ...]  # as they are stored; empty if the response is not stored
    messages: tuple[Json, ...]
    pictures: tuple[Picture, ...]  # shown by the image_url parts of the messages, in order
    new_texts: tuple[str, ...]  # new in this round, to be moderated
    new_pictures: tuple[Picture, ...]
    image: ImagePlan | None
    tools: ResponseTools
    parallel_tool_calls: bool
    max_tool_calls: int | None
    format: JsonFormat | None
    max_output_tokens: int | None
    sampling: ChatSampling
    truncate: bool
    top_logprobs: int
    logprobs: bool
    time_limit_s: float
    template_options: Mapping[str, Any]

    @property
    def image_required(self) -> bool:
        """Whether the response must contain a picture, whatever the model generates."""
        is_only_choice = self.tools.allowed == (IMAGE_FUNCTION,)
        is_only_tool = len(self.tools.functions) == 1 and self.image is not None
        return self.image is not None and self.tools.mode == "required" and (is_only_choice or is_only_tool)


@dataclass(frozen=True, slots=True)
class Turn:
    """The request of one turn of the chat model."""

    messages: tuple[Json, ...]
    tool_choice: ToolMode
    allowed_tools: tuple[str, ...]
    max_tokens: int | None
