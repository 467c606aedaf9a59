"""What one response needs to run, looked up and checked: nothing in it is left to default."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.catalog.chat import Upstream
from pipelines.catalog.images import ImageModel
from pipelines.protocol.chat import ChatSampling, ChatSpec, JsonFormat
from pipelines.protocol.images import Picture
from server.accounts.keys import Key
from server.accounts.responses import StoredItem
from server.flows.chat.run import Tally
from server.flows.moderation import Subject
from server.flows.references import Reference
from server.flows.responses.context import IMAGE_FUNCTION
from server.schemas.response_object import Json
from server.schemas.response_tools import ImageTool


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """The image tool of this round. `explicit` are the pictures sent with this request, `newest` the chain's last."""

    tool: ImageTool
    model: ImageModel
    results_base: str
    explicit: tuple[Reference, ...]
    newest: Reference | None
    mask: Reference | None
    partial_images: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A response."""

    key: Key
    source: ChatSpec | Upstream
    tally: Tally
    subject: Subject
    inputs: tuple[StoredItem, ...]  # as they are kept; none if they aren't
    messages: tuple[Json, ...]
    pictures: tuple[Picture, ...]  # shown by the image_url parts of the messages, in order
    texts: tuple[str, ...]  # what is new in this round, for moderation
    new_pictures: tuple[Picture, ...]
    image: ImagePlan | None
    tools: tuple[Mapping[str, Any], ...]  # in the chat's shape, the image tool among them
    tool_choice: Literal["none", "auto", "required"]
    allowed_tools: tuple[str, ...]
    parallel_tool_calls: bool
    max_tool_calls: int | None
    format: JsonFormat | None
    max_output_tokens: int | None
    sampling: ChatSampling
    truncate: bool
    top_logprobs: int
    logprobs: bool
    time_limit_s: float

    @property
    def must_draw(self) -> bool:
        """Whether the round is to have a picture whatever the model says."""
        named = self.allowed_tools == (IMAGE_FUNCTION,)
        only = len(self.tools) == 1 and self.image is not None
        return self.image is not None and self.tool_choice == "required" and (named or only)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model is asked in one of its turns."""

    messages: tuple[Json, ...]
    tool_choice: Literal["none", "auto", "required"]
    allowed_tools: tuple[str, ...]
    max_tokens: int | None
