"""The plan of one response: everything that it needs, looked up and checked. Every field has its final value."""

from dataclasses import dataclass

from pipelines.protocol.images import RawImage
from server.accounts.keys import Key
from server.accounts.response_items import StoredItem
from server.catalog.chat import ChatModel
from server.catalog.images import ImageModel
from server.flows.chat.request import ChatRequest
from server.flows.moderation import ModerationContext
from server.flows.references import Reference
from server.flows.responses.tools import IMAGE_FUNCTION, ResponseTools
from server.schemas.response_tools import ImageTool


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """The image tool of this round."""

    tool: ImageTool
    model: ImageModel
    results_base: str
    explicit: tuple[Reference, ...]  # the images in the request's last user message
    newest: Reference | None  # the last image of the chain
    mask: Reference | None
    partial_images: int
    service_tier: str | None = None  # that is asked for


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """One response."""

    key: Key
    chat: ChatModel
    request: ChatRequest  # of the first turn; further turns have more messages
    moderation: ModerationContext
    inputs: tuple[StoredItem, ...]  # as they are stored; empty if the response is not stored
    new_texts: tuple[str, ...]  # new in this round, to be moderated
    new_images: tuple[RawImage, ...]
    image: ImagePlan | None
    tools: ResponseTools
    max_tool_calls: int | None
    encrypted: bool = False  # the request includes `reasoning.encrypted_content`
    left_out: tuple[str, ...] = ()  # paths of images that could not be read any more

    @property
    def image_required(self) -> bool:
        """Return whether the response must contain an image, even if the model calls for none."""
        is_only_choice = self.tools.allowed == (IMAGE_FUNCTION,)
        is_only_tool = len(self.tools.functions) == 1 and self.image is not None
        return self.image is not None and self.tools.mode == "required" and (is_only_choice or is_only_tool)
