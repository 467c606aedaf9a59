"""/v1/conversations: items that responses read and add to."""

import asyncio
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel

from server.accounts.keys import Key
from server.accounts.paging import Page
from server.http import examples
from server.http.bodies import read_json
from server.http.deps import Caller, ServicesDep
from server.http.openapi import answer, json_body, openapi, parameter
from server.http.paging import page_parameters, read_limit, read_order
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
from server.services import Services

router = APIRouter(prefix="/v1/conversations")

Body = TypeVar("Body", bound=BaseModel)
CONVERSATION_ID = parameter("path", "conversation_id", "The id of a conversation of this key.")
ITEM_ID = parameter("path", "item_id", "The id of an item in it.")
WRITE_ERRORS = (400, 401, 404, 408, 413, 429, 500, 503)


async def _read(request: Request, key: Key, services: Services, model: type[Body]) -> Body:
    values = await read_json(request, key, services)
    return await asyncio.to_thread(partial(validate, model, values, strict=True))


@router.post(
    "",
    **openapi(
        "Create a conversation",
        "A response with `conversation` reads its items, and adds its own when it has ended. A conversation that is "
        "not used is deleted after as many days as a response.",
        body=json_body(CreateConversation, examples.CONVERSATION),
        success=answer("The conversation.", ConversationObject),
        errors=WRITE_ERRORS,
    ),
)
async def create(request: Request, key: Caller, services: ServicesDep) -> dict[str, Any]:
    """A conversation with its first items."""
    body = await _read(request, key, services, CreateConversation)
    return await services.responses.conversations.create(key, body.items, body.metadata)


@router.get(
    "/{conversation_id}",
    **openapi(
        "Show a conversation",
        "Returns the conversation, without its items.",
        parameters=[CONVERSATION_ID],
        success=answer("The conversation.", ConversationObject),
        errors=[401, 404, 500, 503],
    ),
)
async def show(conversation_id: str, key: Caller, services: ServicesDep) -> dict[str, Any]:
    """A conversation."""
    return await services.responses.conversations.show(key, conversation_id)


@router.post(
    "/{conversation_id}",
    **openapi(
        "Change a conversation",
        "Replaces the metadata.",
        parameters=[CONVERSATION_ID],
        body=json_body(ChangeConversation, examples.CHANGE_CONVERSATION),
        success=answer("The conversation after that.", ConversationObject),
        errors=WRITE_ERRORS,
    ),
)
async def change(conversation_id: str, request: Request, key: Caller, services: ServicesDep) -> dict[str, Any]:
    """Other metadata."""
    body = await _read(request, key, services, ChangeConversation)
    return await services.responses.conversations.label(key, conversation_id, body.metadata)


@router.delete(
    "/{conversation_id}",
    **openapi(
        "Delete a conversation",
        "Deletes a conversation and its items. Responses that were made in it stay.",
        parameters=[CONVERSATION_ID],
        success=answer("The conversation is deleted.", DeletedConversation),
        errors=[401, 404, 500, 503],
    ),
)
async def delete(conversation_id: str, key: Caller, services: ServicesDep) -> dict[str, Any]:
    """Forget a conversation."""
    return await services.responses.conversations.delete(key, conversation_id)


@router.post(
    "/{conversation_id}/items",
    **openapi(
        "Add items to a conversation",
        "Puts up to 20 items at its end. Those with pictures count as one call.",
        parameters=[CONVERSATION_ID],
        body=json_body(AddItems, examples.CONVERSATION_ITEMS),
        success=answer("The new items.", ConversationItemList),
        errors=WRITE_ERRORS,
    ),
)
async def add_items(conversation_id: str, request: Request, key: Caller, services: ServicesDep) -> dict[str, Any]:
    """More items."""
    body = await _read(request, key, services, AddItems)
    return await services.responses.conversations.add(key, conversation_id, body.items)


@router.get(
    "/{conversation_id}/items",
    **openapi(
        "List the items of a conversation",
        "Returns a page of its items, which ends before `limit` where their pictures are large.",
        parameters=[CONVERSATION_ID, *page_parameters("item")],
        success=answer("A page of items.", ConversationItemList),
        errors=[400, 401, 404, 500, 503],
    ),
)
async def list_items(
    conversation_id: str,
    key: Caller,
    services: ServicesDep,
    limit: str = "20",
    order: str = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    """A page of items."""
    page = Page(read_limit(limit), read_order(order), after)
    return await services.responses.conversations.list_items(key, conversation_id, page)


@router.get(
    "/{conversation_id}/items/{item_id}",
    **openapi(
        "Show an item of a conversation",
        "Returns one item.",
        parameters=[CONVERSATION_ID, ITEM_ID],
        success=answer("The item.", ConversationItem),
        errors=[401, 404, 500, 503],
    ),
)
async def show_item(conversation_id: str, item_id: str, key: Caller, services: ServicesDep) -> dict[str, Any]:
    """One item."""
    return await services.responses.conversations.show_item(key, conversation_id, item_id)


@router.delete(
    "/{conversation_id}/items/{item_id}",
    **openapi(
        "Delete an item of a conversation",
        "Later responses do not read it.",
        parameters=[CONVERSATION_ID, ITEM_ID],
        success=answer("The conversation.", ConversationObject),
        errors=[401, 404, 500, 503],
    ),
)
async def delete_item(conversation_id: str, item_id: str, key: Caller, services: ServicesDep) -> dict[str, Any]:
    """Forget one item."""
    return await services.responses.conversations.delete_item(key, conversation_id, item_id)
