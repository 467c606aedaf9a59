"""The image routes' bodies, as OpenAI's SDKs send and read them."""

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError, from_json

from pipelines.protocol.images import Background, Batch, LongPrompt
from server.errors import BadRequest
from server.schemas.base import Answer, OmittedIfNone
from server.schemas.extra_fields import Label, OrNone, ServiceTier
from server.schemas.image_synonyms import REFUSED, Guidance, OtherNames, Steps, Strength, merge
from server.schemas.validation import iter_strings

MAX_PROMPT = 32_000
MAX_REFERENCES = 16
MAX_CONTROLS = 4
UNSUPPORTED = {  # field -> what to do instead
    "complexity": "leave it out",
    "frame_count": "it draws still images; leave it out",
    "frame_duration_ms": "it draws still images; leave it out",
    "svg": "its images are PNG, JPEG or WebP",
    "markup": "leave it out",
    "file_id": "send the image itself in 'image'",
    **REFUSED,
}
NO_EFFECT = ("safety_identifier", "style", "user")  # accepted, and named in a response header
IMAGE_FIELDS = "send references as 'image', and what says where to paint as 'mask'"
IMAGE_NAME = re.compile(r"image|img|mask", re.IGNORECASE)


def lower(value: object) -> object:
    """Return a string in lower case and without spaces around it, other values as they are."""
    return value.strip().lower() if isinstance(value, str) else value


def _format_name(value: object) -> object:
    """Return the name of a file format: `jpg` and `image/jpeg` are other names of `jpeg`."""
    name = lower(value)
    name = name.removeprefix("image/") if isinstance(name, str) else name
    return "jpeg" if name == "jpg" else name


def _size_name(value: object) -> object:
    """Return a size as the API documents it: people write capitals, spaces, and other signs between the sides."""
    return re.sub(r"[x×*]", "x", re.sub(r"\s", "", value).lower()) or None if isinstance(value, str) else value


Word = BeforeValidator(lower)
SizeName = Annotated[str | None, BeforeValidator(_size_name)]
OutputFormat = Annotated[Literal["png", "jpeg", "webp"], BeforeValidator(_format_name)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | dict) else value


def _from_form(value: object) -> object:
    """Parse an object that comes as JSON: forms have text alone."""
    try:
        return from_json(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _as_url(value: object) -> object:
    """Return the text of a reference, which OpenAI's JSON edits have as an object, its chats as one in another, and
    the answers of image routes as bytes or a URL in an item."""
    if isinstance(value, dict) and value.get("file_id") is not None:
        raise PydanticCustomError("file_id", "there are no files here: send the image itself, as 'image_url'")
    for name in ("image_url", "url"):
        value = (value.get(name) or value) if isinstance(value, dict) else value
    if isinstance(value, dict) and isinstance(value.get("b64_json"), str):
        value = f"data:image/png;base64,{value['b64_json']}"  # whatever it is: it is known by its bytes
    return value.strip() if isinstance(value, str) else value


def unread_image(name: str, instead: str = IMAGE_FIELDS) -> BadRequest:
    """Return the error of a field with an image that is not read."""
    return BadRequest(f"'{name}' is not read here: {instead}.", param=name, code="unknown_parameter")


def refuse_unread_images(fields: Collection[str], values: Mapping[str, Any], instead: str = IMAGE_FIELDS) -> None:
    """Refuse an unknown field with an image, as other servers name it: the call would be drawn, and charged, without
    it. Raises BadRequest."""
    for name in values.keys() - fields:
        starts = ("data:image/", "http://", "https://") if IMAGE_NAME.search(name) else ("data:image/",)
        if any(text[:20].lower().startswith(starts) for text in iter_strings(values[name])):
            raise unread_image(name, instead)


class ImageSource(BaseModel):
    """A reference as OpenAI's JSON edits have it."""

    image_url: str


Reference = Annotated[str, Field(min_length=1), BeforeValidator(_as_url, json_schema_input_type=str | ImageSource)]
References = Annotated[list[Reference], Field(max_length=MAX_REFERENCES)]
Upload = Annotated[bytes, WithJsonSchema({"type": "string", "contentMediaType": "application/octet-stream"})]
CONFIG = ConfigDict(extra="ignore", allow_inf_nan=False)
LoraName = Annotated[str, Field(min_length=1, max_length=255)]  # of a file, as people call them
ControlName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
LoraWeight = Annotated[float, Field(ge=-4, le=4)]
Quality = Annotated[Literal["low", "medium", "high", "xhigh", "max", "standard", "hd", "auto"], Word]


RANDOM_SEED = -1  # as other image servers and their clients write it
Seed = Annotated[
    Annotated[int, Field(ge=RANDOM_SEED, lt=2**63)] | None,
    AfterValidator(lambda seed: None if seed == RANDOM_SEED else seed),
    Field(
        description=(
            "It decides all noise of an image. Image i of `n` has seed + i, and each seed its own noise: below 2^32 "
            "that of bare diffusers. Random, and below 2^32, unless it is sent, or with -1."
        )
    ),
]


def _as_scale(value: object) -> object:
    """Read "2" and "4x", as forms and other image servers' clients write them, and "4k"."""
    if not isinstance(value, str):
        return value
    return {"2": 2, "4": 4}.get(value.rstrip("xX"), value.upper())


Times = Literal[2, 4, "1K", "2K", "4K"]
Scale = Annotated[Times, BeforeValidator(_as_scale, json_schema_input_type=Times)]


def _as_control(value: object) -> object:
    return {"image": value} if isinstance(value, str) else value


class ControlOptions(BaseModel):
    """A control's image, the map of a ControlNet or the reference of an IP-Adapter, and how strong it is. In forms,
    the image is a file part `controls[NAME]`."""

    model_config = CONFIG

    image: Reference | None = None
    strength: Annotated[float, Field(gt=0, le=2)] | None = None


ControlOption = Annotated[
    ControlOptions, BeforeValidator(_as_control, json_schema_input_type=ControlOptions | Reference)
]
ImageList = Annotated[References, BeforeValidator(_as_list, json_schema_input_type=Reference | References)]


class OpenAIOptions(BaseModel):
    """OpenAI's fields, except the references and the mask."""

    model_config = CONFIG

    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
    model: str | None = None
    n: Annotated[int, Field(ge=1)] = 1
    size: SizeName = None
    quality: Quality | None = None
    response_format: Annotated[Literal["url", "b64_json"], Word] | None = None
    output_format: OutputFormat = "png"
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    background: Annotated[Literal["transparent", "opaque", "auto"] | bool, Word] = "auto"  # true: in the background
    moderation: Annotated[Literal["auto", "low"], Word] = "auto"
    input_fidelity: Annotated[Literal["low", "high"] | None, OrNone] = None
    style: Label = None  # of dall-e-3; nothing here could honour it, and old clients always send it
    stream: bool = False
    partial_images: Annotated[int, Field(ge=0, le=3)] = 0
    user: Label = None
    safety_identifier: Label = None
    service_tier: ServiceTier = None


class SamplingOptions(BaseModel):
    """Fields of `pipelines.protocol.images.Sampling` that a request may set, by the same names."""

    model_config = CONFIG

    steps: Steps | None = None
    guidance: Guidance | None = None
    strength: Strength | None = None
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT)] | None = None
    scheduler: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    long_prompt: Annotated[LongPrompt, Word] | None = None
    loras: Annotated[dict[LoraName, LoraWeight], BeforeValidator(_from_form), Field(max_length=8)] = {}
    batch: Annotated[Batch, Word] | None = None  # "exact" shares no forward pass: the same bits at every time


class ImageOptions(SamplingOptions, OpenAIOptions, OtherNames):
    """The fields that both routes share. SDKs send this server's extensions, the seed and the sampling, through
    `extra_body`."""

    seed: Seed = None
    mask_zoom: bool | None = None  # a small hole in a mask is drawn larger than it is: by default where it is worth it
    enhance: bool | None = None  # a chat model rewrites the prompt first
    webhook: Annotated[str, Field(min_length=1, max_length=2000)] | None = None  # told of the end, in the background


class ControlledOptions(ImageOptions):
    """With the controls that the model's catalog file offers, by name."""

    controls: Annotated[
        dict[ControlName, ControlOption], BeforeValidator(_from_form), Field(max_length=MAX_CONTROLS)
    ] = {}


class GenerationBody(ControlledOptions):
    """POST /v1/images/generations, and OpenAI's JSON at /v1/images/edits. `images` is another name of `image`."""

    image: ImageList = []
    images: ImageList | None = None
    mask: Reference | None = None

    @model_validator(mode="after")
    def _merge_images(self) -> Self:
        merge(self, "images", "image")
        return self


class EditForm(ControlledOptions):
    """POST /v1/images/edits, without its files."""


class EditUpload(EditForm):
    """The whole form, for /openapi.json. The route reads the files apart from the other fields."""

    image: Annotated[list[Upload], Field(min_length=1, max_length=MAX_REFERENCES)]
    mask: Upload | None = None


class UpscaleForm(BaseModel):
    """POST /v1/images/upscale, without its file. `prompt` says what the image shows, for the model that redraws it;
    none is needed. With `background: true` it is drawn in the background."""

    model_config = CONFIG

    scale: Scale = 2
    model: str | None = None
    prompt: Annotated[str, Field(max_length=MAX_PROMPT)] = ""
    response_format: Annotated[Literal["url", "b64_json"], Word] | None = None
    output_format: OutputFormat = "png"
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    background: Annotated[Literal["opaque", "auto"] | bool, Word] = False
    moderation: Annotated[Literal["auto", "low"], Word] = "auto"
    seed: Seed = None
    user: str | None = None


class UpscaleBody(UpscaleForm):
    """The same as JSON: the image by URL or data URI."""

    image: Reference


class UpscaleUpload(UpscaleForm):
    """The whole form, for /openapi.json. The route reads the file apart from the other fields."""

    image: Upload


class ImageItem(Answer):
    """One image of an answer: where it is, its bytes, or both. `revised_prompt` is what a chat model made of the
    prompt."""

    url: OmittedIfNone[str] = None
    b64_json: OmittedIfNone[str] = None
    revised_prompt: OmittedIfNone[str] = None
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
    """The answer of both image routes; `parameters` is this server's own addition. Models without qualities have no
    `quality`."""

    created: int
    data: list[ImageItem]
    background: Background = "opaque"
    output_format: str
    quality: OmittedIfNone[str] = None
    service_tier: OmittedIfNone[str] = None  # in which it was drawn
    size: str
    usage: Usage
    parameters: dict[str, Any]


class _ImageEvent(Answer):
    """The fields of both events of a stream. `image_index`, which of n images, is this server's own addition."""

    b64_json: str
    created_at: int
    size: str
    quality: str
    background: Background = "opaque"
    output_format: str
    image_index: int


class PartialEvent(_ImageEvent):
    """A preview of an image that is still being drawn."""

    type: Literal["image_generation.partial_image", "image_edit.partial_image"]
    partial_image_index: int


class CompletedEvent(_ImageEvent):
    """A finished image, with its part of the usage."""

    type: Literal["image_generation.completed", "image_edit.completed"]
    usage: Usage
    url: str | None
    revised_prompt: OmittedIfNone[str] = None
    seed: int
    parameters: dict[str, Any]
