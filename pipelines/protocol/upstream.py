"""Other servers that speak OpenAI's API and answer calls in place of a worker."""

from dataclasses import dataclass
from typing import Literal

ImageApi = Literal["darkroom", "sglang", "vllm"]


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server, and the model's name there."""

    base_url: str  # ends in /v1, without a slash
    model: str
    api_key_env: str | None  # the environment variable that has its key; None sends none
    vision: bool | None = None  # whether a chat model there sees images; None if only that server knows


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageUpstream(Upstream):
    """An upstream that draws images. `api` says which fields its image routes take beyond OpenAI's."""

    api: ImageApi
    supports: tuple[str, ...] = ()  # names of Capabilities; another Darkroom tells its own
    guidance_field: Literal["guidance_scale", "true_cfg_scale"] = "guidance_scale"
