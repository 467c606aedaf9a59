"""Translates a job into the fields that each kind of server takes. Pure.

A job's values are final, so all of them that the model takes are sent, and the other server's defaults do not matter.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.checkpoints.work.estimate import GRID_PX
from pipelines.checkpoints.work.plan import plan_image, task_of
from pipelines.protocol.images import ImageJob
from pipelines.protocol.messages import Capabilities
from pipelines.protocol.upstream import ImageUpstream

SEED_MODULUS = 2**63
OUR_NAMES = {  # the other servers' fields -> ours, for their errors
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "true_cfg_scale": "guidance",
    "url": "image",
    "images": "image",
    "image[]": "image",
}
OUR_FIELDS = {
    "prompt",
    "long_prompt",
    "n",
    "size",
    "seed",
    "steps",
    "guidance",
    "strength",
    "negative_prompt",
    "background",
    "image",
    "mask",
}


@dataclass(frozen=True, slots=True)
class ImageExchange:
    """One request of a job: the images from `first` on, `count` of them. An edit if the job has references."""

    upstream: ImageUpstream
    fields: Mapping[str, Any]
    first: int
    count: int
    idempotency_key: str


def capabilities_of(upstream: ImageUpstream, max_references: int) -> Capabilities:
    """Return the capabilities that the catalog names for an upstream's model whose server does not report them."""
    return _capabilities(upstream.supports, max_references, mask=False, long_prompts=(), reproducible=None)


def capabilities_of_card(card: Mapping[str, Any]) -> Capabilities:
    """Return the capabilities that another Darkroom names for its model, in its list of models. Raises KeyError,
    TypeError or ValueError for another list."""
    supports = set(card["supports"])
    above = card.get("negative_prompt_above")
    return _capabilities(
        supports,
        int(card["max_references"]),
        mask="mask" in supports,
        negative_prompt_above=None if above is None else float(above),
        reproducible=card.get("reproducible"),
        long_prompts=tuple(card.get("long_prompts", ())),
        prompt_tokens=card.get("limits", {}).get("prompt_tokens"),
    )


def _capabilities(supports: Collection[str], max_references: int, **others: Any) -> Capabilities:
    return Capabilities(
        text="text" in supports,
        references=max_references if "image" in supports else 0,
        second_pass=False,
        negative_prompt="negative_prompt" in supports,
        guidance="guidance" in supports,
        any_steps="steps" in supports,
        transparent="transparent" in supports,
        **others,
    )


def exchanges_of(job: ImageJob, upstream: ImageUpstream, capabilities: Capabilities) -> list[ImageExchange]:
    """Return the requests of a job. Another Darkroom draws all of its images in one, and gives image i seed + i. Other
    servers treat a seed and several images in different ways, so each image is a request of its own."""
    if upstream.api == "darkroom":
        fields = {**_common_fields(job, upstream, capabilities), **_of_darkroom(job, capabilities)}
        return [ImageExchange(upstream, fields, 0, job.n, f"{job.id}-upstream")]
    common = {**_common_fields(job, upstream, capabilities), **_of_others(job, upstream, capabilities)}
    return [
        ImageExchange(upstream, {**common, "seed": (job.seed + i) % SEED_MODULUS}, i, 1, f"{job.id}-upstream-{i}")
        for i in range(job.n)
    ]


def _common_fields(job: ImageJob, upstream: ImageUpstream, capabilities: Capabilities) -> dict[str, Any]:
    """Return the fields that every server takes. The format is PNG for any format of the job: the file that callers get
    is made here, and PNG has lost nothing."""
    fields: dict[str, Any] = {
        "model": upstream.model,
        "prompt": job.prompt,
        "n": 1,
        "seed": job.seed,
        "output_format": "png",
        "response_format": "b64_json",
    }
    if job.encoding.background == "transparent":
        fields["background"] = job.encoding.background
    if job.sampling.negative_prompt and capabilities.negative_prompt:
        fields["negative_prompt"] = job.sampling.negative_prompt
    return fields


def _of_darkroom(job: ImageJob, capabilities: Capabilities) -> dict[str, Any]:
    """Return the fields that only another Darkroom takes. It draws any size of its tier by itself, and streams
    previews. A size off the grid is that of the reference, which it follows where no size is sent."""
    on_grid = job.width_px % GRID_PX == job.height_px % GRID_PX == 0
    fields: dict[str, Any] = {"n": job.n, "stream": True}
    if on_grid or not job.references:
        fields["size"] = f"{job.width_px}x{job.height_px}"
    if job.previews:
        fields["partial_images"] = job.previews
    if capabilities.any_steps:
        fields["steps"] = job.sampling.steps
    if capabilities.guidance:
        fields["guidance"] = job.sampling.guidance
    if capabilities.long_prompts:
        fields["long_prompt"] = job.sampling.long_prompt
    if not task_of(job).starts_from_noise:
        fields["strength"] = job.sampling.strength
    return fields


def _of_others(job: ImageJob, upstream: ImageUpstream, capabilities: Capabilities) -> dict[str, Any]:
    """Return the fields that other servers take. They draw the size that they get, so an image far from the model's
    area is drawn at that area, and scaled."""
    plan = plan_image(job.checkpoint, job.width_px, job.height_px, GRID_PX)
    fields: dict[str, Any] = {"size": f"{plan.width}x{plan.height}"}
    if capabilities.any_steps:
        fields["num_inference_steps"] = job.sampling.steps
    if capabilities.guidance:
        fields[upstream.guidance_field] = job.sampling.guidance
    return fields
