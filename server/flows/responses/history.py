"""The stored things that a request names: the chain of earlier responses, items by their ids, images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from server.accounts.conversations import MAX_ITEMS
from server.accounts.keys import Key
from server.accounts.response_items import StoredItem
from server.accounts.responses import RUNNING
from server.errors import BadRequest, NotFound
from server.flows.references import Reference, ReferenceLoader, StoredImage
from server.flows.responses.context import ImageRef
from server.flows.responses.items import store_images, to_stored, user_text
from server.parts import Stores
from server.schemas.response_items import ImageCallItem, Item, ItemReference
from server.schemas.responses import ResponseBody

CHECKED_PX = 10_000  # of an image that is decoded only to see whether it can be


@dataclass(frozen=True, slots=True)
class PastItems:
    """The items before a request. `unchecked`: the items that the client put into a conversation by itself, so that no
    response has had them moderated."""

    items: Sequence[StoredItem] = ()
    unchecked: Sequence[StoredItem] = ()


class History:
    """Reads and writes the items of responses."""

    def __init__(self, stores: Stores, references: ReferenceLoader) -> None:
        self._store = stores.responses
        self._conversations = stores.conversations
        self._storage = stores.files
        self._stored_files = stores.stored_files
        self._references = references

    async def read_past(self, key: Key, body: ResponseBody) -> PastItems:
        """Read the conversation or the chain that a request goes on from. Raises BadRequest or NotFound."""
        if body.conversation is None:
            return PastItems(await self.read_chain(key, body.previous_response_id))
        name, store = body.conversation.id, self._conversations
        found = await store.in_reader(store.items, name, key.id)
        if found is None:
            message = f"Conversation with id '{name}' not found."
            raise NotFound(message, param="conversation", code="conversation_not_found")
        items, unchecked = found
        if len(items) >= MAX_ITEMS:
            message = f"This conversation has {MAX_ITEMS:,} items, as many as there may be: begin a new one."
            raise BadRequest(message, param="conversation", code="too_many_items")
        return PastItems(items, unchecked)

    async def read_chain(self, key: Key, previous_id: str | None) -> list[StoredItem]:
        """Read the items of all rounds up to that response. Raises BadRequest if this key has no such response, or if
        it still runs."""
        if previous_id is None:
            return []
        chain = await self._store.in_reader(self._store.find_chain, previous_id, key.id)
        if chain is None:
            message = f"Previous response with id '{previous_id}' not found."
            raise BadRequest(message, param="previous_response_id", code="previous_response_not_found")
        state, items = chain
        if state in RUNNING:
            message = f"Response '{previous_id}' is still {state}: wait for its end, then continue from it."
            raise BadRequest(message, param="previous_response_id")
        return items

    async def read_inputs(self, key: Key, sent: str | list[Item]) -> tuple[list[StoredItem], list[str]]:
        """Read the items of a request; those that are sent as ids alone are looked up. Return them, and the paths of
        those that are not found: a text stands for them. Raises BadRequest if the last item is not found."""
        if isinstance(sent, str):
            return [user_text(sent)], []
        found, missing = await self._look_up(key, sent)
        for index in missing & {len(sent) - 1}:
            raise _not_found(sent, index)
        return found, [f"input[{index}]" for index in sorted(missing)]

    async def read_items(self, key: Key, sent: list[Item]) -> list[StoredItem]:
        """Read items likewise, all of which must be found. Raises BadRequest."""
        found, missing = await self._look_up(key, sent)
        for index in sorted(missing):
            raise _not_found(sent, index)
        return found

    async def _look_up(self, key: Key, sent: list[Item]) -> tuple[list[StoredItem], set[int]]:
        """Return the items, and the indexes of those that are not found."""
        ids = {item.id for item in sent if isinstance(item, ItemReference | ImageCallItem)}
        stored = await self._store.in_reader(self._store.find_items, ids, key.id) if ids else {}
        items, missing = list[StoredItem](), set[int]()
        for index, item in enumerate(sent):
            if isinstance(item, ItemReference | ImageCallItem) and item.id in stored:
                items.append(replace(stored[item.id], side="input"))
                continue
            if isinstance(item, ItemReference) or (isinstance(item, ImageCallItem) and _lacks_image(item)):
                missing.add(index)
            items.append(user_text(f"[item: {item.id}]") if isinstance(item, ItemReference) else to_stored(item))
        return items, missing

    async def is_there(self, image: ImageRef) -> bool:
        """Return whether an image is available: it was sent, or is stored and was not deleted."""
        try:
            if image.is_file:
                await self._storage.in_thread(self._storage.require, image.source)
        except FileNotFoundError:
            return False
        return True

    async def store_inputs(
        self, key: Key, inputs: Sequence[StoredItem], *, field: str = "input", decoded: bool
    ) -> tuple[StoredItem, ...]:
        """Write the images of items to files, and return the items with these files. An image that no decoder accepts
        is not stored: no later response could read it. `decoded` says that the images were just decoded. Raises
        ApiError."""
        store = partial(self._store_image, key, field, not decoded)
        return tuple([await store_images(item, store) for item in inputs])

    async def _store_image(self, key: Key, field: str, check: bool, data_uri: str, extension: str) -> str:
        async with self._references.in_memory(key.id, Reference(field, data_uri)) as data:
            if check:
                await self._references.decode(key.id, field, data, CHECKED_PX)
            (name,) = await self._stored_files.in_writer(self._stored_files.name_new, extension)
            await self._storage.in_thread(self._storage.write, name, data)
        return name


def to_reference(image: ImageRef) -> Reference:
    """Return the image as the image routes take it. A file is named, and read when it is decoded."""
    return Reference("input", StoredImage(image.source) if image.is_file else image.source)


def _not_found(sent: list[Item], index: int) -> BadRequest:
    message = f"Item with id '{sent[index].id}' not found. Only items of stored responses can be sent as an id."
    return BadRequest(message, param=f"input[{index}].id")


def _lacks_image(item: ImageCallItem) -> bool:
    """Return whether an image is missing that should be there. A call that failed needs none: the model is told of the
    failure."""
    return not item.result and item.status in {None, "completed"}
