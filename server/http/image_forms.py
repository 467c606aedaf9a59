"""The parts of an edit's form: which are files, which are texts, and which say nothing."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from server.errors import BadRequest
from server.schemas.images import unread_image

IMAGE_FIELD = re.compile(r"(images?|files?)(\[\d*\])?|image_?\d{1,3}")
MASK_FIELD = re.compile(r"masks?(\[\d*\])?")
CONTROL_FIELD = re.compile(r"controls\[[^\[\]]+\]")
MEMBER = re.compile(r"(?P<field>loras)\[(?P<member>[^\[\]]+)\]")


@dataclass(frozen=True, slots=True)
class FormParts:
    """The parts that say something, the files in their order. `ignored` are names of files without effect, and of texts
    beside the files that they only name."""

    files: tuple[tuple[str, UploadFile], ...]
    texts: Mapping[str, Any]
    ignored: tuple[str, ...]

    def of_kind(self, kind: str) -> list[UploadFile]:
        """Return the files that are the `image` or the `mask`."""
        return [file for name, file in self.files if kind_of(name) == kind]


def kind_of(name: str) -> str | None:
    """Return what a file of this name is: the `image`, the `mask`, or a control by its whole name; None for others."""
    if IMAGE_FIELD.fullmatch(name):
        return "image"
    if MASK_FIELD.fullmatch(name):
        return "mask"
    return name if CONTROL_FIELD.fullmatch(name) else None


class FormParser(MultiPartParser):
    """Takes an image's part for a file by its type, too: some clients give it no file name."""

    def on_headers_finished(self) -> None:
        """Make an image without a name a file without one."""
        part = self._current_part
        _, options = parse_options_header(part.content_disposition)
        is_image = kind_of(options.get(b"name", b"").decode("latin-1")) is not None
        kind = dict(part.item_headers).get(b"content-type", b"").lower()
        if is_image and b"filename" not in options and kind.startswith((b"image/", b"application/octet-stream")):
            part.content_disposition = (part.content_disposition or b"") + b'; filename=""'
        super().on_headers_finished()


@asynccontextmanager
async def open_form(
    request: Request, *, max_files: int, max_fields: int, max_part_size: int
) -> AsyncIterator[FormData]:
    """Read a form, whose files are closed at the end. Raises HTTPException for one that can't be read."""
    limits = {"max_files": max_files, "max_fields": max_fields, "max_part_size": max_part_size}
    try:
        async with aclosing(request.stream()) as stream:
            form = await FormParser(request.headers, stream, **limits).parse()
    except MultiPartException as error:
        raise HTTPException(status_code=400, detail=error.message) from error
    try:
        yield form
    finally:
        await form.close()


def read_form(form: FormData) -> FormParts:
    """Sort the parts of a form. Browsers and no-code tools send an empty part for what was not filled in, and some
    gateways the name of a file as a text beside it. A form without another image keeps its empty ones, which are
    refused as such. Raises BadRequest for a text in place of a file, and for a file beside the image that nothing
    reads: the call would be drawn without it."""
    files = [(name, part) for name, part in form.multi_items() if isinstance(part, UploadFile)]
    has_image = any(file.size and kind_of(name) == "image" for name, file in files)
    filled = [(name, file) for name, file in files if file.size or (file.filename and not has_image)]
    kinds = {kind_of(name) for name, _ in filled}
    texts = {name: part for name, part in form.multi_items() if isinstance(part, str) and part}
    named = [name for name in texts if kind_of(name) and name not in {"file", "files"}]
    if misplaced := [name for name in named if kind_of(name) not in kinds]:
        raise BadRequest(f"'{misplaced[0]}' must be a file part here, not text.", param=misplaced[0].partition("[")[0])
    if has_image and (unread := [name for name, file in filled if not kind_of(name)]):
        raise unread_image(unread[0])
    unused = [name for name, file in files if (file.filename and not file.size and has_image) or not kind_of(name)]
    return FormParts(
        tuple(filled),
        _fold_members({name: text for name, text in texts.items() if name not in named}),
        (*named, *unused),
    )


def _fold_members(texts: Mapping[str, str]) -> dict[str, Any]:
    """Fold an object's fields, which SDKs write as `loras[style]`, into an object."""
    values: dict[str, Any] = {}
    for name, text in texts.items():
        if found := MEMBER.fullmatch(name):
            values.setdefault(found["field"], {})[found["member"]] = text
    return {**values, **{name: text for name, text in texts.items() if not MEMBER.fullmatch(name)}}
