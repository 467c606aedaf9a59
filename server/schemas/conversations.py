"""Bodies and answers of /v1/conversations, as OpenAI's SDKs have them."""

from typing import Annotated, Literal

from pydantic import Field, RootModel
from typing_extensions import TypedDict

from server.schemas.chat_messages import LenientModel
from server.schemas.response_answers import InputItem, InputItemList
from server.schemas.response_items import Item
from server.schemas.responses import Metadata

NewItems = Annotated[list[Item], Field(max_length=20)]


class CreateConversation(LenientModel):
    """POST /v1/conversations."""

    items: NewItems = Field(default_factory=list)
    metadata: Metadata = Field(default_factory=dict)


class ChangeConversation(LenientModel):
    """POST /v1/conversations/{id}."""

    metadata: Metadata


class AddItems(LenientModel):
    """POST /v1/conversations/{id}/items."""

    items: Annotated[NewItems, Field(min_length=1)]


class ConversationObject(TypedDict):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(TypedDict):
    """The conversation and its items are gone. Its responses are still there."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class ConversationItem(RootModel[InputItem]):
    """One item."""


class ConversationItemList(InputItemList):
    """A page of items. Continue with `after` = `last_id` while `has_more` is true."""
