"""Conversations of a key, and the items in them."""

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TypeVar

from server.accounts.conversations import (
    MAX_CONVERSATIONS,
    MAX_IMAGES,
    MAX_ITEM_BYTES,
    MAX_ITEMS,
    Conversation,
    ConversationStore,
    TooMany,
)
from server.accounts.keys import Key
from server.accounts.paging import Page, UnknownEntry
from server.accounts.response_items import StoredItem
from server.backends.storage import Storage
from server.errors import BadRequest, NotFound
from server.flows.rate_limits import RateLimiter
from server.flows.responses.history import History
from server.flows.responses.items import has_data_uri, render, render_page
from server.schemas.conversations import ConversationObject, DeletedConversation
from server.schemas.response_answers import InputItem, InputItemList, item_list
from server.schemas.response_items import Item

Found = TypeVar("Found")
LIMITS = {  # the code and the message
    "conversations": (
        "too_many_conversations",
        f"This key has {MAX_CONVERSATIONS:,} conversations, as many as it may have: delete some.",
    ),
    "items": (
        "too_many_items",
        f"A conversation has at most {MAX_ITEMS:,} items: delete some, or begin a new one.",
    ),
    "pictures": (
        "too_many_pictures",
        f"The conversations of a key have at most {MAX_IMAGES:,} sent images together: delete some conversations.",
    ),
    "text": (
        "string_above_max_length",
        f"The items of a conversation have at most {MAX_ITEM_BYTES // 1024**2} MiB of text: begin a new one.",
    ),
}


class Conversations:
    """Reads and changes conversations. One for the whole server."""

    def __init__(self, store: ConversationStore, history: History, storage: Storage, limiter: RateLimiter) -> None:
        self._store = store
        self._history = history
        self._storage = storage
        self._limiter = limiter

    async def create(self, key: Key, items: list[Item], metadata: Mapping[str, str]) -> ConversationObject:
        """Create a conversation with these items. Raises BadRequest."""
        conversation = Conversation(f"conv_{uuid.uuid4().hex}", metadata, int(time.time()))
        stored = await self._stored(key, items)
        try:
            await self._store.in_writer(self._store.create, conversation, key.id, stored)
        except TooMany as error:
            raise _refused(error) from error
        return _json(conversation)

    async def show(self, key: Key, conversation_id: str) -> ConversationObject:
        """Return a conversation. Raises NotFound, for other keys' conversations too."""
        return _json(_found(await self._store.in_reader(self._store.find, conversation_id, key.id), conversation_id))

    async def label(self, key: Key, conversation_id: str, metadata: Mapping[str, str]) -> ConversationObject:
        """Replace the metadata of a conversation, and return it. Raises NotFound."""
        labelled = await self._store.in_writer(self._store.label, conversation_id, key.id, metadata)
        return _json(_found(labelled, conversation_id))

    async def delete(self, key: Key, conversation_id: str) -> DeletedConversation:
        """Delete a conversation, and return OpenAI's answer. Raises NotFound."""
        if not await self._store.in_writer(self._store.delete, conversation_id, key.id):
            raise _not_found(conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    async def add(self, key: Key, conversation_id: str, items: list[Item]) -> InputItemList:
        """Put items at the end of a conversation, and return them. Raises NotFound or BadRequest."""
        await self.show(key, conversation_id)  # before images are written
        stored = await self._stored(key, items)
        try:
            if not await self._store.in_writer(self._store.add, conversation_id, key.id, stored):
                raise _not_found(conversation_id)
        except TooMany as error:
            raise _refused(error) from error
        return item_list(await self._rendered(stored), has_more=False)

    async def list_items(self, key: Key, conversation_id: str, page: Page) -> InputItemList:
        """Return a page of a conversation's items. Raises NotFound, or BadRequest for an unknown `after`."""
        try:
            found = await self._store.in_reader(self._store.page, conversation_id, key.id, page)
        except UnknownEntry as error:
            raise BadRequest(f"There is no item '{error}' in this conversation.", param="after") from error
        items = _found(found, conversation_id)
        rendered = await render_page(items[: page.limit], self._storage)
        return item_list(rendered, has_more=len(items) > len(rendered))

    async def show_item(self, key: Key, conversation_id: str, item_id: str) -> InputItem:
        """Return one item of a conversation. Raises NotFound."""
        found = await self._store.in_reader(self._store.find_item, conversation_id, key.id, item_id)
        return (await self._rendered([_found(found, item_id)]))[0]

    async def delete_item(self, key: Key, conversation_id: str, item_id: str) -> ConversationObject:
        """Delete an item, and return its conversation. Raises NotFound."""
        found = await self._store.in_writer(self._store.delete_item, conversation_id, key.id, item_id)
        return _json(_found(found, item_id))

    async def _stored(self, key: Key, items: list[Item]) -> Sequence[StoredItem]:
        """Store the items. Items with images count as a call: they take a decoder's time, and stay on the disk."""
        read = await self._history.read_items(key, items)
        async with self._limiter.slot(key) if any(map(has_data_uri, read)) else nullcontext():
            return await self._history.store_inputs(key, read, field="items", decoded=False)

    async def _rendered(self, items: Sequence[StoredItem]) -> list[InputItem]:
        return [await self._storage.in_thread(render, item, self._storage) for item in items]


def _refused(error: TooMany) -> BadRequest:
    code, message = LIMITS[error.what]
    return BadRequest(message, param=None if error.what == "conversations" else "items", code=code)


def _json(conversation: Conversation) -> ConversationObject:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": dict(conversation.metadata),
    }


def _found(found: Found | None, name: str) -> Found:
    if found is None:
        raise _not_found(name)
    return found


def _not_found(name: str) -> NotFound:
    what = "Conversation" if name.startswith("conv_") else "Item"
    return NotFound(f"{what} with id '{name[:80]}' not found.", param="id")
