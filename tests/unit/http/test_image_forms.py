"""Parts of a form: which are files."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.datastructures import FormData, Headers, UploadFile

from server.http.image_forms import FormParser

PNG = b"\x89PNG\r\n\x1a\n\xff\x00"


def parsed(disposition: str, kind: str | None) -> FormData:
    typed = f"Content-Type: {kind}\r\n" if kind else ""
    head = f"--b\r\nContent-Disposition: form-data; {disposition}\r\n{typed}\r\n"

    async def stream() -> AsyncGenerator[bytes, None]:
        yield head.encode() + PNG + b"\r\n--b--\r\n"

    headers = Headers({"Content-Type": "multipart/form-data; boundary=b"})
    return asyncio.run(FormParser(headers, stream()).parse())


@pytest.mark.parametrize(
    ("disposition", "kind"),
    [
        ('name="image"; filename="a.png"', None), ('name="image"', "image/png"), ('name="image[]"', "Image/JPEG"),
        ("name=image", "application/octet-stream"), ('name="mask"', "image/png"),
        ('name="controls[edges]"', "image/png"),
        ("name=\"image\"; filename*=utf-8''a%20b.png", "image/png"),
    ],
)  # fmt: skip
def test_a_part_with_an_images_name_and_type_is_a_file(disposition: str, kind: str | None) -> None:
    ((_, part),) = parsed(disposition, kind).multi_items()
    assert isinstance(part, UploadFile)
    assert part.file.read() == PNG


@pytest.mark.parametrize(
    ("disposition", "kind"),
    [('name="prompt"', "application/octet-stream"), ('name="image"', None), ('name="image"', "text/plain")],
)
def test_other_parts_without_a_file_name_are_texts(disposition: str, kind: str | None) -> None:
    ((_, part),) = parsed(disposition, kind).multi_items()
    assert isinstance(part, str)
