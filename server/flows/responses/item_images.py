"""The images of a response's items, each read once, and without those that can't be read any more.

Links die and files are deleted. An image of the user's last message is refused then; one of an earlier round is lost: a
text stands for it, and its path is named.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipelines.protocol.images import RawImage
from server.accounts.keys import Key
from server.accounts.response_items import StoredItem
from server.backends.decoding.data_uri import encode_data_uri
from server.conversation.blocks import is_answer, unanswered
from server.conversation.turns import MARK
from server.errors import ApiError
from server.flows.references import Reference, ReferenceLoader
from server.flows.responses.context import ImageRef, image_of_part, images_of
from server.flows.responses.history import CHECKED_PX, PastItems, to_reference
from server.flows.responses.items import PARTS, is_sent_drawing, parts_of, with_parts
from server.schemas.response_object import Json
from server.schemas.responses import ResponseBody

LOST: Json = {"type": "input_text", "text": MARK}


@dataclass(frozen=True, slots=True)
class RequestItems:
    """The items of a request to the Responses API: those of earlier rounds, and those that it sends."""

    past: PastItems
    inputs: Sequence[StoredItem]

    @property
    def items(self) -> list[StoredItem]:
        """Return all items, in their order."""
        return [*self.past.items, *self.inputs]

    @property
    def last(self) -> list[ImageRef]:
        """Return the images of the user's last message, if it was sent now and waits for an answer."""
        sent = [item.body for item in self.inputs]
        spoken = unanswered([body.get("role") == "user" for body in sent], [*map(is_answer, sent)])
        return [image for index in spoken for image in images_of(self.inputs[index])]

    @property
    def required(self) -> list[ImageRef]:
        """Return the images that must be there: those of the user's last message, and a drawing that is sent last."""
        drawn = [image for item in self.inputs[-1:] if is_sent_drawing(item) for image in images_of(item)]
        return [*self.last, *drawn]


class ItemImages:
    """Reads the images of one request. `lost` are those that could not be read."""

    def __init__(self, references: ReferenceLoader, key: Key, required: Iterable[ImageRef]) -> None:
        self._references = references
        self._key = key
        self._required = frozenset(required)
        self._pixels: dict[ImageRef, RawImage] = {}
        self._uris: dict[ImageRef, str] = {}
        self.lost: set[ImageRef] = set()

    async def pixels(self, images: Iterable[ImageRef]) -> tuple[RawImage, ...]:
        """Decode images; lost ones are left out. Raises ApiError for one that is required."""
        wanted = [image for image in images if image not in self.lost]
        unread = [image for image in dict.fromkeys(wanted) if image not in self._pixels]
        loaded = await self._references.load_shown(self._key.id, [self._reference(image) for image in unread])
        for image, found in zip(unread, loaded, strict=True):
            if found is None:
                self.lost.add(image)
            else:
                self._pixels[image] = found.image
        return tuple(self._pixels[image] for image in wanted if image in self._pixels)

    async def uris(self, images: Iterable[ImageRef]) -> tuple[str, ...]:
        """Return the images as data URIs, for another server; lost ones are left out. Raises ApiError for one that is
        required."""
        wanted = list(images)
        for image in wanted:
            if image not in self._uris and image not in self.lost:
                await self._read(image, partial(self._keep_uri, image))
        return tuple(self._uris[image] for image in wanted if image not in self.lost)

    async def _keep_uri(self, image: ImageRef, data: bytes) -> None:
        self._uris[image] = await asyncio.to_thread(encode_data_uri, data)

    async def check(self, images: Iterable[ImageRef]) -> None:
        """Decode the images, and add those that can't be decoded to `lost`."""
        for image in images:
            await self._read(image, self._decode)

    async def _decode(self, data: bytes) -> None:
        await self._references.decode(self._key.id, "input", data, CHECKED_PX)

    async def _read(self, image: ImageRef, use: Callable[[bytes], Awaitable[None]]) -> None:
        """Hand the file of an image on. If either fails, the image is lost, if it may be. Raises ApiError."""
        reference = self._reference(image)
        try:
            async with self._references.in_memory(self._key.id, reference) as data:
                await use(data)
        except ApiError as error:
            if error.status >= 500 or not reference.past:
                raise
            self.lost.add(image)

    def _reference(self, image: ImageRef) -> Reference:
        return replace(to_reference(image), past=image not in self._required)

    def without_lost(self, items: RequestItems) -> RequestItems:
        """Return the items with a text in the place of every lost image."""
        past = PastItems([*map(self._kept, items.past.items)], [*map(self._kept, items.past.unchecked)])
        return RequestItems(past, [*map(self._kept, items.inputs)])

    def lost_paths(self, body: ResponseBody, items: RequestItems) -> Iterator[str]:
        """Yield the paths of the lost images; those of earlier rounds are in what the request goes on from."""
        if any(self._is_lost(item) for item in items.past.items):
            yield "conversation" if body.conversation else "previous_response_id"
        for index, item in enumerate(items.inputs):
            if is_sent_drawing(item) and self._is_lost(item):
                yield f"input[{index}].result"
            for number, part in enumerate(parts_of(item)):
                if part["type"] == "input_image" and image_of_part(part) in self.lost:
                    yield f"input[{index}].{PARTS[item.body['type']]}[{number}]"

    def _is_lost(self, item: StoredItem) -> bool:
        return any(image in self.lost for image in images_of(item))

    def _kept(self, item: StoredItem) -> StoredItem:
        if not self._is_lost(item):
            return item
        if not (parts := parts_of(item)):  # a drawn image: the call of it stays
            body = {name: value for name, value in item.body.items() if name != "image_url"}
            return replace(item, body=body, image=None)
        lost = [one["type"] == "input_image" and image_of_part(one) in self.lost for one in parts]
        return with_parts(item, [LOST if gone else one for one, gone in zip(parts, lost, strict=True)])
