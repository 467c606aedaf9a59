"""The image routes' bodies, as OpenAI's SDKs send and read them."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from server.schemas.answer import Answer
from server.schemas.errors import ErrorDetail

MAX_PROMPT = 32_000
MAX_REFERENCES = 16
UNSUPPORTED = {  # field -> what to do instead
    "complexity": "leave it out",
    "frame_count": "it draws still pictures; leave it out",
    "frame_duration_ms": "it draws still pictures; leave it out",
    "svg": "its pictures are PNG, JPEG or WebP",
    "markup": "leave it out",
    "file_id": "send the picture itself in 'image'",
    "images": "use 'image'",
}


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _from_form(value: object) -> object:
    """Forms have text alone: an object comes as JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


Reference = Annotated[str, Field(min_length=1)]
References = Annotated[list[Reference], Field(max_length=MAX_REFERENCES)]
Upload = Annotated[bytes, WithJsonSchema({"type": "string", "contentMediaType": "application/octet-stream"})]
CONFIG = ConfigDict(extra="ignore", allow_inf_nan=False)
LoraName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
LoraWeight = Annotated[float, Field(ge=-4, le=4)]


class OpenAIOptions(BaseModel):
    """OpenAI's fields, except the references and the mask."""

    model_config = CONFIG

    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
    model: str | None = None
    n: Annotated[int, Field(ge=1)] = 1
    size: str | None = None
    quality: Literal["low", "medium", "high", "auto"] | None = None
    response_format: Literal["url", "b64_json"] = "url"
    output_format: Literal["png", "jpeg", "webp"] = "png"
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    background: Literal["transparent", "opaque", "auto"] = "auto"
    moderation: Literal["auto", "low"] = "auto"
    input_fidelity: Literal["low", "high"] | None = None
    style: str | None = None  # of dall-e-3; nothing here could honour it, and old clients always send it
    stream: bool = False
    partial_images: Annotated[int, Field(ge=0, le=3)] = 0
    user: str | None = None
    safety_identifier: str | None = None


class SamplingOptions(BaseModel):
    """Fields of `pipelines.protocol.images.Sampling` that a request may set, by the same names."""

    model_config = CONFIG

    steps: Annotated[int, Field(ge=1, le=200)] | None = None
    guidance: Annotated[float, Field(ge=0, le=50)] | None = None
    strength: Annotated[float, Field(gt=0, le=1)] | None = None
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT)] | None = None
    loras: Annotated[dict[LoraName, LoraWeight], BeforeValidator(_from_form), Field(max_length=8)] = {}


class ImageOptions(SamplingOptions, OpenAIOptions):
    """What both routes share. SDKs send this server's extensions, the seed and the sampling, through `extra_body`."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class GenerationBody(ImageOptions):
    """POST /v1/images/generations."""

    image: Annotated[References, BeforeValidator(_as_list, json_schema_input_type=Reference | References)] = []
    mask: Reference | None = None


class EditForm(ImageOptions):
    """POST /v1/images/edits, without its files."""


class EditUpload(EditForm):
    """The whole form, for /openapi.json. The route reads the files apart from the other fields."""

    image: Annotated[list[Upload], Field(min_length=1, max_length=MAX_REFERENCES)]
    mask: Upload | None = None


class ImageItem(Answer):
    """One picture of an answer: where it is, or its bytes."""

    url: str | None = None
    b64_json: str | None = None
    seed: int


class Usage(Answer):
    """OpenAI's token counts. Billing here is per call, so these only describe: an image token is 16x16 pixels, a text
    token is estimated as four bytes of UTF-8."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ImageAnswer(Answer):
    """What both image routes return; `parameters` is this server's own addition."""

    created: int
    data: list[ImageItem]
    background: Literal["opaque"] = "opaque"
    output_format: str
    quality: str | None
    size: str
    usage: Usage
    parameters: dict[str, Any]


class _ImageEvent(Answer):
    """What both events of a stream say. `image_index`, which of n pictures, is this server's own addition."""

    b64_json: str
    created_at: int
    size: str
    quality: str
    background: Literal["opaque"] = "opaque"
    output_format: str
    image_index: int


class PartialEvent(_ImageEvent):
    """A picture on its way."""

    type: Literal["image_generation.partial_image", "image_edit.partial_image"]
    partial_image_index: int


class CompletedEvent(_ImageEvent):
    """A finished picture, with its part of the usage."""

    type: Literal["image_generation.completed", "image_edit.completed"]
    usage: Usage
    url: str | None
    seed: int
    parameters: dict[str, Any]


class ImageProgress(Answer):
    """How many of the denoising steps are done."""

    step: int
    steps: int


class ImageJobState(Answer):
    """GET /v1/images/jobs/{id}. `result` is the answer that the call got or would have got, `error` its error."""

    id: str
    object: Literal["image.job"] = "image.job"
    created: int
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    progress: ImageProgress | None = None
    result: ImageAnswer | None = None
    error: ErrorDetail | None = None
