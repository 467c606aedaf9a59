"""POST /v1/images/generations and /v1/images/edits."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from server.accounts.fingerprints import fingerprint
from server.accounts.keys import Key
from server.errors import BadRequest, ErrorBody, UnsupportedMedia
from server.flows.call_recording import describe_body
from server.flows.images.controls import ControlRequest
from server.flows.images.prompt_notes import foreign_syntax
from server.flows.images.request import ImageRequest, named_images, unused_fields
from server.flows.references import Reference
from server.http import examples
from server.http.bodies import read_json, receiving_body
from server.http.delivery import CancelOnDisconnect, background_answer, call_answer
from server.http.deps import (
    Caller,
    ServicesDep,
    content_type_of,
    ignored_header,
    public_base,
    read_retry_info,
    wants_async,
    wants_keepalive,
)
from server.http.image_forms import CONTROL_FIELD, FormParts, open_form, read_form
from server.http.openapi import (
    CREATE_ERRORS,
    CREATE_HEADERS,
    IDEMPOTENCY_KEY,
    KEEPALIVE,
    PREFER,
    Responses,
    answer,
    errors,
    event_stream_of,
    form_body,
    header_docs,
    json_body,
    returns,
)
from server.schemas.extra_fields import refuse_unsupported
from server.schemas.image_jobs import ImageJobState
from server.schemas.image_synonyms import OtherNames
from server.schemas.images import (
    MAX_CONTROLS,
    MAX_REFERENCES,
    NO_EFFECT,
    UNSUPPORTED,
    CompletedEvent,
    ControlledOptions,
    ControlOptions,
    EditForm,
    EditUpload,
    GenerationBody,
    ImageAnswer,
    PartialEvent,
    SamplingOptions,
    refuse_unread_images,
)
from server.schemas.validation import ignored_fields, validate
from server.services import Services
from server.telemetry.call_trace import current_trace

router = APIRouter(prefix="/v1/images")
Options = TypeVar("Options", bound=ControlledOptions)

MAX_FILES = 64  # more than the rule allows, so that the rule can say what is wrong
MAX_FORM_FIELDS = 100
MAX_TEXT_BYTES = 1024**2
# Options that ImageRequest takes as they are.
REQUEST_FIELDS = {field.name for field in fields(ImageRequest)} & ControlledOptions.model_fields.keys() - {
    "background",
    "controls",
}
IMAGE_TYPES = "image/png, image/jpeg, image/webp, image/avif, image/gif"
IN_BACKGROUND = header_docs(["x-darkroom-job", "Location", "Retry-After", "Preference-Applied", *CREATE_HEADERS])
PARAMETERS = [IDEMPOTENCY_KEY, KEEPALIVE, PREFER]
RESPONSES: Responses = {
    **returns(
        ImageAnswer,
        *CREATE_ERRORS,
        stream=event_stream_of(PartialEvent, CompletedEvent, ErrorBody, examples=examples.IMAGE_EVENTS),
        headers=["x-darkroom-job", *CREATE_HEADERS],
    ),
    202: {**answer("The call runs in the background.", ImageJobState), "headers": IN_BACKGROUND},
}
PART_TYPES = {
    "image": IMAGE_TYPES,
    "mask": IMAGE_TYPES,
    "loras": "application/json",
    "controls": "application/json",
}


@dataclass(frozen=True, slots=True)
class SentImages:
    """The images of a request. `control_files` are by the names of their parts."""

    references: tuple[Reference, ...]
    mask: Reference | None
    control_files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call as it was `sent`, as its `body` was read, and as the `request` that it makes."""

    sent: Mapping[str, Any]
    body: BaseModel
    request: ImageRequest

    def fingerprint(self) -> str:
        """Return the fingerprint by which a retry is matched to this call."""
        elsewhere = {"image", "images", "mask", "controls", "background", *OtherNames.model_fields}
        meant = self.body.model_dump(mode="json", exclude=elsewhere, exclude_defaults=True)
        controls = {each.name: each.strength for each in self.request.controls}
        meant |= {"controls": controls} if controls else {}
        if self.request.background != "auto":  # the same call, whether its client waits or comes back
            meant["background"] = self.request.background
        return fingerprint(self.sent, meant, named_images(self.request))


@router.post(
    "/generations",
    response_description="The images, as JSON or as a stream.",
    responses=RESPONSES,
    openapi_extra={"parameters": PARAMETERS, "requestBody": json_body(GenerationBody, examples.GENERATION)},
)
async def generate(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Generate images.

    Draws images from a text and, if the body has `image`, from reference images by URL or data URI. A field that is
    null counts as absent. With `background: true` the answer is 202 with the state of the call, which is read by its
    id. With `stream`, each event has the `type` of its data as its name; an error after the first event comes as the
    event `error`.
    """
    return await _answer_json(request, services, key, "images.generations")


@router.post(
    "/edits",
    response_description="The images, as JSON or as a stream.",
    responses={**RESPONSES, **errors(415)},
    openapi_extra={"parameters": PARAMETERS, "requestBody": form_body(EditUpload, examples.EDIT, PART_TYPES)},
)
async def edit(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Edit images.

    Draws images from a text and from reference images, which are sent as files: one part named `image` or `image[]`
    for each. An alpha channel in `mask` marks where to paint. Streams are those of /v1/images/generations.
    """
    if services.settings.json_edits and content_type_of(request) == "application/json":
        return await _answer_json(request, services, key, "images.edits")
    _require_multipart(request)
    async with (
        receiving_body(request, key, services),
        open_form(request, max_files=MAX_FILES, max_fields=MAX_FORM_FIELDS, max_part_size=MAX_TEXT_BYTES) as form,
    ):
        parts = read_form(form)
        texts = parts.texts
        describe_body(current_trace(), texts)
        body = _options(EditForm, texts, [name for name, _ in parts.files], strict=False)
        sent = await _sent_images(parts)
    call = _image_request(request, services, "images.edits", body, sent)
    return await answer_call(
        request,
        services,
        key,
        AskedCall(texts, body, call),
        [*ignored_fields(EditForm, texts, NO_EFFECT), *parts.ignored],
    )


async def _answer_json(request: Request, services: Services, key: Key, endpoint: str) -> Response:
    """Answer a JSON body. An edit needs a reference."""
    values = await read_json(request, key, services)
    body = await asyncio.to_thread(partial(_options, GenerationBody, values, strict=True))
    field = "images" if values.get("images") is not None else "image"
    if endpoint == "images.edits" and not body.image:
        message = "Missing required parameter: 'images'. Send at least one image as {'image_url': ...}."
        raise BadRequest(message, param="images", code="missing_required_parameter")
    references = tuple(Reference(f"{field}[{i}]", item) for i, item in enumerate(body.image))
    mask = Reference("mask", body.mask) if body.mask else None
    call = _image_request(request, services, endpoint, body, SentImages(references, mask))
    asked = AskedCall(values, body, call)
    return await answer_call(request, services, key, asked, ignored_fields(GenerationBody, values, NO_EFFECT))


async def answer_call(request: Request, services: Services, key: Key, asked: AskedCall, ignored: list[str]) -> Response:
    """Answer a call. A header names the fields that were ignored."""
    retry_info = read_retry_info(request, await asyncio.to_thread(asked.fingerprint))
    image_request = asked.request
    call = await services.images.calls.find_or_start(key, image_request, retry_info)
    unused = unused_fields(image_request, services.served.catalog.current, services.engines.image.capabilities)
    sampling = image_request.sampling
    unused += foreign_syntax({"prompt": image_request.prompt, "negative_prompt": sampling.negative_prompt})
    replayed = call.replayed or (call.done and not image_request.in_background)
    headers = services.admission.limiter.headers(key) | ignored_header([*ignored, *unused])
    headers |= {"Idempotency-Replayed": "true"} if replayed else {}
    if image_request.in_background:
        describe = partial(services.images.jobs.describe, key)
        return CancelOnDisconnect(partial(background_answer, request, call, describe, headers))
    keepalive = wants_keepalive(request, key)
    return CancelOnDisconnect(partial(call_answer, request, call, image_request, headers, keepalive))


def _options(model: type[Options], values: Mapping[str, Any], files: Sequence[str] = (), *, strict: bool) -> Options:
    refuse_unsupported({**values, **dict.fromkeys(files, "a file")}, UNSUPPORTED)
    refuse_unread_images(model.model_fields.keys(), values)
    return validate(model, values, strict=strict)


def _image_request(
    request: Request, services: Services, endpoint: str, body: ControlledOptions, sent: SentImages
) -> ImageRequest:
    """Return the call that a body asks for. Raises BadRequest for a stream in the background, which nothing would
    read."""
    if body.background is True and body.stream:
        message = "'stream' and 'background': true exclude each other: send one of them."
        raise BadRequest(message, param="stream", code="invalid_parameter_combination")
    in_background = body.background is True or (wants_async(request) and not body.stream)
    if body.webhook is not None:
        services.images.webhooks.check(body.webhook, in_background=in_background)
    return ImageRequest(
        endpoint=endpoint,
        results_base=public_base(request, services),
        references=sent.references,
        mask=sent.mask,
        controls=_controls(body, sent.control_files),
        sampling=SamplingOptions(**body.model_dump(include=set(SamplingOptions.model_fields))),
        in_background=in_background,
        background="auto" if isinstance(body.background, bool) else body.background,
        **body.model_dump(include=REQUEST_FIELDS),
    )


def _controls(body: ControlledOptions, files: Mapping[str, bytes]) -> tuple[ControlRequest, ...]:
    """Return the controls of a request. `files` are the images of a form, by the names of their parts. Raises
    BadRequest for a control without one."""
    if len(files) > MAX_CONTROLS:
        message = f"Invalid 'controls': too many. Expected at most {MAX_CONTROLS}, but got {len(files)}."
        raise BadRequest(message, param="controls", code="array_above_max_length")
    controls = dict.fromkeys((name[len("controls[") : -1] for name in files), ControlOptions()) | body.controls
    requested = []
    for name, options in controls.items():
        field = f"controls[{name}]"
        source = files.get(field, options.image)
        if source is None:
            message = f"Missing required parameter: '{field}'. Send the image of this control."
            raise BadRequest(message, param="controls", code="missing_required_parameter")
        requested.append(ControlRequest(name, Reference(field, source), options.strength))
    return tuple(sorted(requested, key=lambda each: each.name))


def _require_multipart(request: Request) -> None:
    content_type = content_type_of(request)
    if content_type != "multipart/form-data":
        raise UnsupportedMedia(
            f"/v1/images/edits takes multipart/form-data, not {content_type or 'a body without a content type'}. "
            "To send references as URLs or data URIs in JSON, use /v1/images/generations with its 'image' array."
        )


async def _sent_images(parts: FormParts) -> SentImages:
    """Read the images of a form. The names and types of files are the client's fancy; the bytes are sniffed later.
    Raises BadRequest for none, and for too many."""
    images = parts.of_kind("image")
    if not images:
        message = "Missing required parameter: 'image'. Send at least one file part named 'image' or 'image[]'."
        raise BadRequest(message, param="image", code="missing_required_parameter")
    if len(images) > MAX_REFERENCES:
        message = f"Invalid 'image': array too long. Expected at most {MAX_REFERENCES} items, but got {len(images)}."
        raise BadRequest(message, param="image", code="array_above_max_length")
    masks = parts.of_kind("mask")
    if len(masks) > 1:
        message = f"Invalid 'mask': array too long. Expected one file part, but got {len(masks)}."
        raise BadRequest(message, param="mask", code="array_above_max_length")
    controls = [(name, file) for name, file in parts.files if CONTROL_FIELD.fullmatch(name)]
    return SentImages(
        tuple([Reference(f"image[{i}]", await file.read()) for i, file in enumerate(images)]),
        Reference("mask", await masks[-1].read()) if masks else None,
        {name: await file.read() for name, file in controls},
    )
