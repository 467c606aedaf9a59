"""/v1/conversations: items that responses read and add to."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from server.flows.responses.request import readable_input
from server.http import examples
from server.http.bodies import KeyedJsonBody, Model, read_json
from server.http.deps import Caller, ServicesDep, ignored_header
from server.http.openapi import errors, returns
from server.http.queries import PageDep
from server.schemas.conversations import (
    AddItems,
    ChangeConversation,
    ConversationItem,
    ConversationItemList,
    ConversationObject,
    CreateConversation,
    DeletedConversation,
)
from server.schemas.validation import validate

router = APIRouter(prefix="/v1/conversations")


class ItemsBody(KeyedJsonBody[Model]):
    """A body with items, in which a text stands for what can't be read, as in the input of a response."""

    async def __call__(  # type: ignore[override]
        self, request: Request, response: Response, key: Caller, services: ServicesDep
    ) -> Model:
        """Read and validate the body. Raises ApiError with the field's name."""
        values = await read_json(request, key, services)
        items, left_out = await asyncio.to_thread(readable_input, values.get("items"), "items")
        response.headers.update(ignored_header(left_out))
        return await asyncio.to_thread(partial(validate, self.model, {**values, "items": items}, strict=True))


ConversationId = Annotated[str, Path(description="The id of a conversation of this key.")]
ItemId = Annotated[str, Path(description="The id of an item in it.")]
NewConversation = Annotated[CreateConversation, Depends(ItemsBody(CreateConversation, examples.CONVERSATION))]
Change = Annotated[ChangeConversation, Depends(KeyedJsonBody(ChangeConversation, examples.CHANGE_CONVERSATION))]
NewItems = Annotated[AddItems, Depends(ItemsBody(AddItems, examples.CONVERSATION_ITEMS))]


@router.post(
    "",
    response_description="The conversation.",
    responses=returns(ConversationObject, 404, 408, 429, headers=["x-darkroom-ignored"]),
)
async def create(body: NewConversation, key: Caller, services: ServicesDep) -> ConversationObject:
    """Create a conversation.

    A response with `conversation` reads its items, and adds its own when it has ended. A conversation that is not used
    is deleted after as many days as a response.
    """
    return await services.responses.conversations.create(key, body.items, body.metadata)


@router.get("/{conversation_id}", response_description="The conversation.", responses=errors(404))
async def show(conversation_id: ConversationId, key: Caller, services: ServicesDep) -> ConversationObject:
    """Show a conversation.

    Returns the conversation, without its items.
    """
    return await services.responses.conversations.show(key, conversation_id)


@router.post("/{conversation_id}", response_description="The conversation after that.", responses=errors(404, 408, 429))
async def change(
    conversation_id: ConversationId, body: Change, key: Caller, services: ServicesDep
) -> ConversationObject:
    """Change a conversation.

    Replaces the metadata.
    """
    return await services.responses.conversations.label(key, conversation_id, body.metadata)


@router.delete("/{conversation_id}", response_description="The conversation is deleted.", responses=errors(404))
async def delete(conversation_id: ConversationId, key: Caller, services: ServicesDep) -> DeletedConversation:
    """Delete a conversation.

    Deletes a conversation and its items. Responses that were made in it stay.
    """
    return await services.responses.conversations.delete(key, conversation_id)


@router.post(
    "/{conversation_id}/items",
    response_description="The new items.",
    responses=returns(ConversationItemList, 404, 408, 429, headers=["x-darkroom-ignored"]),
)
async def add_items(
    conversation_id: ConversationId, body: NewItems, key: Caller, services: ServicesDep
) -> Mapping[str, Any]:
    """Add items to a conversation.

    Puts up to 20 items at its end. Those with images count as one call.
    """
    return await services.responses.conversations.add(key, conversation_id, body.items)


@router.get(
    "/{conversation_id}/items",
    response_description="A page of items.",
    responses=returns(ConversationItemList, 400, 404),
)
async def list_items(
    conversation_id: ConversationId, key: Caller, services: ServicesDep, page: PageDep
) -> Mapping[str, Any]:
    """List the items of a conversation.

    Returns a page of its items, which ends before `limit` where their images are large.
    """
    return await services.responses.conversations.list_items(key, conversation_id, page)


@router.get(
    "/{conversation_id}/items/{item_id}",
    response_description="The item.",
    responses=returns(ConversationItem, 404),
)
async def show_item(
    conversation_id: ConversationId, item_id: ItemId, key: Caller, services: ServicesDep
) -> Mapping[str, Any]:
    """Show an item of a conversation.

    Returns one item.
    """
    return await services.responses.conversations.show_item(key, conversation_id, item_id)


@router.delete("/{conversation_id}/items/{item_id}", response_description="The conversation.", responses=errors(404))
async def delete_item(
    conversation_id: ConversationId, item_id: ItemId, key: Caller, services: ServicesDep
) -> ConversationObject:
    """Delete an item of a conversation.

    Later responses do not read it.
    """
    return await services.responses.conversations.delete_item(key, conversation_id, item_id)
