"""Arguments of diffusers' pipeline calls that differ between the families, by the signature and never by the name."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from pipelines.protocol.images import ImageJob


def max_sequence_length(pipeline: Any) -> dict[str, int]:
    """The length that prompts are padded to: less than the default if the only tokenizer has a smaller limit.

    Pipelines of the FLUX.2 family attend to the padding, which costs time. FLUX.2 [dev] has a processor for a
    tokenizer, which has no limit of its own.
    """
    lengths = inspect.signature(pipeline.__call__).parameters.get("max_sequence_length")
    limit = getattr(getattr(pipeline, "tokenizer", None), "model_max_length", None)
    if lengths is None or not isinstance(lengths.default, int) or limit is None or hasattr(pipeline, "tokenizer_2"):
        return {}
    return {"max_sequence_length": min(lengths.default, limit)}


def references(accepted: Mapping[str, Any], first: Image.Image, others: Sequence[Image.Image]) -> Any:
    """The references of a native pipeline: a list where its call takes one, which some need, else the picture."""
    takes_list = "list" in str(accepted["image"].annotation).lower()
    return [first, *others] if others or takes_list else first


def guidance(accepted: Mapping[str, Any], job: ImageJob) -> dict[str, Any]:
    """The guidance and negative prompt as a pipeline takes them.

    Where `guidance_scale` is absent or defaults to None, as in Qwen-Image's call, classifier-free guidance is
    `true_cfg_scale`, and it is applied only if there is a negative prompt, even a blank one.
    """
    guidance_scale, scale = accepted.get("guidance_scale"), job.sampling.guidance
    negative = job.sampling.negative_prompt
    if "true_cfg_scale" in accepted and (guidance_scale is None or guidance_scale.default is None):
        return {"true_cfg_scale": scale, "negative_prompt": negative or " "}
    return {"guidance_scale": scale, "negative_prompt": negative or None}
