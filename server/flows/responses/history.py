"""What a request names and the database or the storage has: the chain, items by their ids, pictures."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from server.accounts.keys import Key
from server.accounts.responses import RUNNING, StoredItem
from server.backends.image_decoding import PictureError
from server.errors import BadImageRequest, BadRequest
from server.flows.references import Reference
from server.flows.responses.context import Shown
from server.flows.responses.items import keep_pictures, to_stored, user_text
from server.schemas.response_items import ImageCallItem, Item, ItemReference
from server.services import Services


async def read_chain(services: Services, key: Key, previous_id: str | None) -> list[StoredItem]:
    """All rounds up to that response. Raises BadRequest where this key has none, or it still runs."""
    if previous_id is None:
        return []
    found = await asyncio.to_thread(services.responses.chain, previous_id, key.id)
    if found is None:
        message = f"Previous response with id '{previous_id}' not found."
        raise BadRequest(message, param="previous_response_id", code="previous_response_not_found")
    state, items = found
    if state in RUNNING:
        message = f"Response '{previous_id}' is still {state}: wait for its end, then continue from it."
        raise BadRequest(message, param="previous_response_id")
    return items


async def read_inputs(services: Services, key: Key, sent: str | list[Item]) -> list[StoredItem]:
    """The new items; those that are named by their ids alone are looked up. Raises BadRequest."""
    if isinstance(sent, str):
        return [user_text(sent)]
    wanted = {item.id for item in sent if isinstance(item, ItemReference | ImageCallItem)}
    known = await asyncio.to_thread(services.responses.items, wanted, key.id) if wanted else {}
    found: list[StoredItem] = []
    for index, item in enumerate(sent):
        if isinstance(item, ItemReference | ImageCallItem) and item.id in known:
            found.append(replace(known[item.id], side="input"))
        elif isinstance(item, ItemReference) or (isinstance(item, ImageCallItem) and not item.result):
            message = f"Item with id '{item.id}' not found. Only items of stored responses can be named by their id."
            raise BadRequest(message, param=f"input[{index}].id")
        else:
            found.append(to_stored(item))
    return found


async def to_references(services: Services, shown: Iterable[Shown]) -> tuple[Reference, ...]:
    """Pictures as the image routes take them: stored ones by their bytes. Raises BadRequest."""
    found: list[Reference] = []
    for picture in shown:
        try:
            source = (
                await asyncio.to_thread(services.storage.read, picture.source) if picture.is_file else picture.source
            )
        except FileNotFoundError as error:
            message = "A picture of this chain has been deleted; begin a new one."
            raise BadRequest(message, param="previous_response_id") from error
        found.append(Reference("input", source))
    return tuple(found)


def keep_inputs(services: Services, inputs: Sequence[StoredItem]) -> tuple[StoredItem, ...]:
    """The items as they are kept, their pictures in files. Blocks. Raises BadImageRequest."""
    try:
        return tuple(keep_pictures(item, services.storage) for item in inputs)
    except PictureError as error:
        raise BadImageRequest(f"input: {error}", param="input", code="invalid_image_file") from error
