"""POST /v1/images/generations and /v1/images/edits; GET /v1/images/jobs/{id}."""

import asyncio
import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.datastructures import FormData, UploadFile

from server.accounts.keys import Key
from server.errors import BadRequest, UnsupportedMedia
from server.flows.fingerprint import fingerprint
from server.flows.images.request import ImageRequest
from server.flows.references import Reference
from server.http import examples
from server.http.bodies import hold_body, read_json, sending
from server.http.delivery import ImageCallResponse
from server.http.deps import Caller, ServicesDep, ignored_header, public_base, read_retry_info, wants_keepalive
from server.http.openapi import (
    CREATE_ERRORS,
    CREATE_HEADERS,
    IDEMPOTENCY_KEY,
    KEEPALIVE,
    answer,
    event_stream_of,
    form_body,
    json_body,
    openapi,
    parameter,
)
from server.schemas.errors import ErrorBody
from server.schemas.hosted_fields import refuse_unsupported
from server.schemas.images import (
    MAX_REFERENCES,
    UNSUPPORTED,
    CompletedEvent,
    EditForm,
    EditUpload,
    GenerationBody,
    ImageAnswer,
    ImageJobState,
    ImageOptions,
    PartialEvent,
    SamplingOptions,
)
from server.schemas.validation import ignored_fields, validate
from server.services import Services

router = APIRouter(prefix="/v1/images")
Options = TypeVar("Options", bound=ImageOptions)

MAX_FILES = 64  # more than the rule allows, so that the rule can say what is wrong
MAX_FORM_FIELDS = 100
MAX_TEXT_BYTES = 1024**2
IMAGE_FIELD = re.compile(r"image(\[\d*\])?")
MEMBER = re.compile(r"(?P<field>loras)\[(?P<member>[^\[\]]+)\]")
# Options that ImageRequest takes as they are.
REQUEST_FIELDS = {field.name for field in dataclasses.fields(ImageRequest)} & ImageOptions.model_fields.keys()
PICTURE_TYPES = "image/png, image/jpeg, image/webp, image/gif"
CREATES_PICTURES: dict[str, Any] = {
    "success": answer("The pictures, as JSON or as a stream.", ImageAnswer),
    "stream": event_stream_of(PartialEvent, CompletedEvent, ErrorBody, examples=examples.IMAGE_EVENTS),
    "parameters": [IDEMPOTENCY_KEY, KEEPALIVE],
    "headers": ["x-darkroom-job", *CREATE_HEADERS],
}


@router.get(
    "/jobs/{job_id}",
    **openapi(
        "Show an image call",
        "Tells whether a call is queued or running, how far it is, and how it ended. Only the key that made the call "
        "can see it.",
        parameters=[parameter("path", "job_id", "The id in the `x-darkroom-job` header of the call's answer.")],
        success=answer("The state of the call.", ImageJobState),
        errors=[401, 404, 500, 503],
    ),
)
async def show_job(job_id: str, key: Caller, services: ServicesDep) -> ImageJobState:
    """What became of a call, by the id in its answer's `x-darkroom-job` header."""
    return await services.call_status.describe(key, job_id)


@router.post(
    "/generations",
    **openapi(
        "Generate pictures",
        "Draws pictures from a text and, if the body has `image`, from reference pictures. A field that is null counts "
        "as absent. With `stream`, each event has the `type` of its data as its name; an error after the first event "
        "comes as the event `error`.",
        body=json_body(GenerationBody, examples.GENERATION),
        errors=CREATE_ERRORS,
        **CREATES_PICTURES,
    ),
)
async def generate(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Text to image, and image to image with references by URL or data URI."""
    values = await read_json(request, key, services)
    body = await asyncio.to_thread(partial(_options, GenerationBody, values, strict=True))
    references = tuple(Reference(f"image[{i}]", item) for i, item in enumerate(body.image))
    mask = Reference("mask", body.mask) if body.mask else None
    call = _image_request("images.generations", body, references, mask, public_base(request, services))
    return await _answer(request, services, key, body, call, ignored_fields(GenerationBody, values))


@router.post(
    "/edits",
    **openapi(
        "Edit pictures",
        "Draws pictures from a text and from reference pictures, which are sent as files: one part named `image` or "
        "`image[]` for each. An alpha channel in `mask` marks where to paint. Streams are those of "
        "/v1/images/generations.",
        body=form_body(
            EditUpload,
            examples.EDIT,
            {"image": PICTURE_TYPES, "mask": PICTURE_TYPES, "loras": "application/json"},
        ),
        errors=[*CREATE_ERRORS, 415],
        **CREATES_PICTURES,
    ),
)
async def edit(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Image to image with references as files."""
    _require_multipart(request)
    async with (
        sending(request, key, services),
        request.form(max_files=MAX_FILES, max_fields=MAX_FORM_FIELDS, max_part_size=MAX_TEXT_BYTES) as form,
    ):
        files = [name for name, value in form.multi_items() if isinstance(value, UploadFile)]
        texts = _folded({name: value for name, value in form.multi_items() if isinstance(value, str)})
        if misplaced := [name for name in texts if _is_file_field(name)]:
            raise BadRequest(
                f"'{misplaced[0]}' must be a file part here, not text.", param=misplaced[0].partition("[")[0]
            )
        body = _options(EditForm, texts, files, strict=False)
        references = await _references(form)
        mask = Reference("mask", await _read(form["mask"])) if "mask" in form else None
    call = _image_request("images.edits", body, references, mask, public_base(request, services))
    return await _answer(
        request,
        services,
        key,
        body,
        call,
        [name for name in (*ignored_fields(EditForm, texts), *files) if not _is_file_field(name)],
    )


async def _answer(
    request: Request, services: Services, key: Key, body: ImageOptions, image_request: ImageRequest, ignored: list[str]
) -> Response:
    """The answer of the call. A header names the fields that were ignored."""
    parameters = body.model_dump(mode="json", exclude={"image", "mask"})
    pictures = [*image_request.references, *([image_request.mask] if image_request.mask else [])]
    retry_info = read_retry_info(request, await asyncio.to_thread(fingerprint, parameters, pictures))
    call = await services.image_calls.find_or_start(key, image_request, retry_info)
    hold_body(request, call)
    headers = services.limiter.headers(key) | ignored_header(ignored)
    return ImageCallResponse(
        services.storage,
        call,
        image_request,
        headers,
        keepalive=wants_keepalive(request, key),
        keepalive_s=services.settings.keepalive_s,
    )


def _options(model: type[Options], values: Mapping[str, Any], files: Sequence[str] = (), *, strict: bool) -> Options:
    refuse_unsupported({**values, **dict.fromkeys(files, "a file")}, UNSUPPORTED)
    return validate(model, values, strict=strict)


def _is_file_field(name: str) -> bool:
    return name == "mask" or IMAGE_FIELD.fullmatch(name) is not None


def _folded(texts: Mapping[str, str]) -> dict[str, Any]:
    """An object's fields, which SDKs write as `loras[style]`, as an object."""
    values: dict[str, Any] = {}
    for name, text in texts.items():
        if found := MEMBER.fullmatch(name):
            values.setdefault(found["field"], {})[found["member"]] = text
    return {**values, **{name: text for name, text in texts.items() if not MEMBER.fullmatch(name)}}


def _image_request(
    endpoint: str, body: ImageOptions, references: tuple[Reference, ...], mask: Reference | None, base: str
) -> ImageRequest:
    return ImageRequest(
        endpoint=endpoint,
        results_base=base,
        references=references,
        mask=mask,
        sampling=SamplingOptions(**body.model_dump(include=set(SamplingOptions.model_fields))),
        **body.model_dump(include=REQUEST_FIELDS),
    )


def _require_multipart(request: Request) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "multipart/form-data":
        raise UnsupportedMedia(
            f"/v1/images/edits takes multipart/form-data, not {content_type or 'a body without a content type'}. "
            "To send references as URLs or data URIs in JSON, use /v1/images/generations with its 'image' array."
        )


async def _references(form: FormData) -> tuple[Reference, ...]:
    parts = [part for name, part in form.multi_items() if IMAGE_FIELD.fullmatch(name)]
    if not parts:
        message = "Missing required parameter: 'image'. Send at least one file part named 'image' or 'image[]'."
        raise BadRequest(message, param="image", code="missing_required_parameter")
    if len(parts) > MAX_REFERENCES:
        message = f"Invalid 'image': array too long. Expected at most {MAX_REFERENCES} items, but got {len(parts)}."
        raise BadRequest(message, param="image", code="array_above_max_length")
    return tuple([Reference(f"image[{i}]", await _read(part)) for i, part in enumerate(parts)])


async def _read(part: UploadFile | str) -> bytes:
    """A file part's bytes. Its name and content type are the client's fancy; the bytes are sniffed later."""
    return await part.read() if isinstance(part, UploadFile) else part.encode()
