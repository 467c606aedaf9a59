"""Arguments of diffusers' pipeline calls that differ between the families, by the signature and never by the name."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.protocol.images import ImageJob


def scalar_or_list(values: list[Any]) -> Any:
    """Some pipelines take a list only for batches of two or more."""
    return values[0] if len(values) == 1 else values


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


def guidance(accepted: Mapping[str, Any], jobs: Sequence[ImageJob]) -> dict[str, Any]:
    """The guidance and negative prompts as a pipeline takes them.

    Where `guidance_scale` is absent or defaults to None, as in Qwen-Image's call, classifier-free guidance is
    `true_cfg_scale`, and it is applied only if there is a negative prompt, even a blank one.
    """
    guidance_scale, scale = accepted.get("guidance_scale"), jobs[0].sampling.guidance
    negatives = [job.sampling.negative_prompt for job in jobs]
    if "true_cfg_scale" in accepted and (guidance_scale is None or guidance_scale.default is None):
        negatives_or_blank = scalar_or_list([negative or " " for negative in negatives])
        return {"true_cfg_scale": scale, "negative_prompt": negatives_or_blank}
    return {"guidance_scale": scale, "negative_prompt": scalar_or_list(negatives) if any(negatives) else None}
