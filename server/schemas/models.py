"""The model list."""

from typing import Literal

from pipelines.protocol.images import ControlKind, LongPrompt
from server.schemas.base import Answer

Modality = Literal["text", "image"]


class Architecture(Answer):
    """The inputs and outputs, by which other servers tell image models from chat models."""

    input_modalities: list[Modality]
    output_modalities: list[Modality]


class ImageLimits(Answer):
    """The bounds of a request. `prompt_tokens` is how many the checkpoint reads of a prompt, null until it is loaded or
    if it has no limit. Areas and sides are of the finished image; sides are multiples of `side_multiple`."""

    max_n: int
    max_prompt_characters: int
    prompt_tokens: int | None
    max_references: int
    max_steps: int
    min_area_px: int
    max_area_px: int
    min_side_px: int
    max_side_px: int
    side_multiple: int


class ControlCard(Answer):
    """A ControlNet or IP-Adapter that requests may name in `controls`. `map` is the kind of map that a ControlNet
    follows."""

    name: str
    kind: ControlKind
    map: str | None
    strength: float
    works_with: list[Literal["text", "image", "mask"]]


class ModelCard(Answer):
    """An image model: OpenAI's four fields, and those that a caller needs to choose it. `supports` are the capabilities
    that its checkpoint has shown, empty until it is loaded: with `strength`, it redraws a reference image by the prompt
    in place of following an instruction. A negative prompt works only at a guidance above `negative_prompt_above`.
    `reproducible` is false of a model that draws another image each time from one seed, and null until that is known.
    `sizes` has the pixels of each ratio, `price` is CNY a call."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    type: Literal["image"] = "image"
    architecture: Architecture
    aliases: list[str]
    family: str
    group: str
    tier: str
    ratios: list[str]
    sizes: dict[str, str]
    qualities: list[str]
    default_quality: str | None
    steps: int
    supports: list[str]
    negative_prompt_above: float | None
    reproducible: bool | None
    long_prompts: list[LongPrompt]
    adapters: list[str]
    schedulers: list[str]
    controls: list[ControlCard]
    max_references: int
    limits: ImageLimits
    enhance: bool  # of a request that does not say
    price: str
    currency: Literal["CNY"] = "CNY"


class ChatCard(Answer):
    """A chat model. Values that are not known here are null: `tools`, `vision` and `defaults` (the sampling of requests
    that don't say) of an upstream's model, and until it is loaded `max_model_len` (prompt and answer, in tokens; an
    upstream's is what its own list says; `context_length` and `max_input_tokens` are other clients' names for it),
    `batched`, whether several answers are written at once (`why_not_batched` says why they are not), and `notes`, on
    what its files lack."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    type: Literal["chat"] = "chat"
    architecture: Architecture
    aliases: list[str]
    group: str
    tools: bool | None
    vision: bool | None
    max_model_len: int | None
    context_length: int | None
    max_input_tokens: int | None
    batched: bool | None
    why_not_batched: str | None
    notes: list[str] | None
    defaults: dict[str, float] | None


class ModelList(Answer):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard | ChatCard]
