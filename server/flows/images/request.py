"""From a request to a job in which every field has a value. Pure, except for the folder of adapters."""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from pipelines.checkpoints.weight_file.header import WEIGHT_FILES
from pipelines.checkpoints.work.plan import find_task, fit_refine_strength, region_around
from pipelines.families.task import Task
from pipelines.protocol.images import Box, CheckpointSpec, Encoding, ImageFormat, ImageJob, RawImage, Sampling
from pipelines.protocol.messages import Capabilities, ControlledWith
from server.accounts.ledger import BilledCall
from server.catalog.images import MAX_REFERENCES, Catalog, ImageModel
from server.catalog.sizes import Size, SizeError, Tier, enlarged_size, is_cut, resolve_size
from server.errors import BadImageRequest, BadRequest
from server.flows.images.controls import ControlRequest, check_controls, control_inputs
from server.flows.references import DecodedImage, Reference, StoredImage
from server.schemas.images import SamplingOptions

FAITHFUL_STRENGTH = 0.35  # of a redrawn image that shall keep much of its reference
MAX_RANDOM_SEED = 2**32  # bare diffusers draws the same from them, and they survive JSON in every language


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """A validated request for images. Fields with the name of a field of ImageOptions have its meaning."""

    endpoint: str
    results_base: str = ""  # the URL of results, without a slash at the end
    prompt: str
    references: tuple[Reference, ...] = ()
    mask: Reference | None = None
    model: str | None = None
    n: int = 1
    size: str | None = None
    quality: str | None = None
    response_format: Literal["url", "b64_json"] | None = None
    output_format: ImageFormat = "png"
    output_compression: int | None = None
    background: str = "auto"
    moderation: str = "auto"
    service_tier: str | None = None
    enhance: bool | None = None  # None: as the model's catalog file says
    stream: bool = False
    in_background: bool = False  # its client comes back for the result
    webhook: str | None = None  # told of the end
    partial_images: int = 0
    seed: int | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    controls: tuple[ControlRequest, ...] = ()
    input_fidelity: Literal["low", "high"] | None = None
    mask_zoom: bool | None = None  # draw a small hole larger than it is; None: where it is worth it
    scale: int | Tier | None = None  # how many times, or to which tier, its reference is enlarged: all that it asks

    @property
    def reference_count(self) -> int:
        """Return how many references the checkpoint is shown as such: one that is enlarged is none."""
        return 0 if self.scale is not None else len(self.references)

    def task(self, model: ImageModel) -> Task:
        """Return the task that this request is for a model: it depends on references and mask."""
        return find_task(model.checkpoint, has_references=bool(self.references), has_mask=self.mask is not None)


def named_images(request: ImageRequest) -> list[tuple[str, bytes | str]]:
    """Return the images that a request has sent, by what they are for."""
    sent = [(f"image[{index}]", each) for index, each in enumerate(request.references)]
    sent += [("mask", request.mask)] if request.mask else []
    sent += [(f"controls[{each.name}]", each.image) for each in request.controls]
    sources = [(name, each.source) for name, each in sent]
    return [(name, source.name if isinstance(source, StoredImage) else source) for name, source in sources]


def check_options(request: ImageRequest, model: ImageModel, max_n: int, capabilities: Capabilities | None) -> None:
    """Refuse fields that this model or this server can't serve. Raises BadRequest.

    `capabilities` is None until the checkpoint has been loaded; until then the job itself fails.
    """
    if not request.prompt.strip():
        raise BadRequest("Invalid 'prompt': it must not be empty.", param="prompt", code="string_below_min_length")
    if request.n > max_n:
        message = f"Invalid 'n': integer above maximum value. Expected a value <= {max_n}, but got {request.n} instead."
        raise BadRequest(message, param="n", code="integer_above_max_value")
    if request.quality not in {None, "auto"} and model.quality is None:
        message = f"'quality' is not supported with model `{model.name}`: leave it out."
        raise BadRequest(message, param="quality", code="unsupported_parameter")
    if request.partial_images and not (request.stream or request.in_background):
        message = (
            "'partial_images' works with a stream or in the background only: send 'stream': true or 'background': true "
            "too, or leave it out."
        )
        raise BadRequest(message, param="partial_images", code="unsupported_parameter")
    if request.background == "transparent" and request.output_format == "jpeg":
        message = "JPEG has no transparency: use the output format png or webp, or the background 'opaque'."
        raise BadRequest(message, param="output_format", code="unsupported_value")
    check_compression(request)
    if request.sampling.strength is not None and request.task(model).starts_from_noise:
        message = (
            f"'strength' has no effect here: model `{model.name}` uses it with a mask only. Leave it out."
            if request.references
            else "'strength' is how far a reference image is redrawn: send 'image' too, or leave it out."
        )
        raise BadRequest(message, param="strength", code="unsupported_parameter")
    offered = offered_schedulers(model, capabilities)
    if request.sampling.scheduler is not None and request.sampling.scheduler not in offered:
        message = (
            f"Model `{model.name}` takes no such scheduler. Schedulers: {', '.join(offered) or 'none by request'}."
            f"{_why_failed(f'the scheduler {request.sampling.scheduler}', capabilities)}"
        )
        raise BadRequest(message, param="scheduler", code="unsupported_value")
    if request.sampling.batch == "exact" and model.checkpoint.upstream is not None:
        message = f"Model `{model.name}` is drawn by another server, which promises no 'exact' images: leave it out."
        raise BadRequest(message, param="batch", code="unsupported_value")
    if capabilities is not None:
        _check_capabilities(request, model, capabilities)
    way: ControlledWith = "mask" if request.mask else "image" if request.references else "text"
    check_controls(request.controls, way, model, capabilities)
    max_references = reference_limit(model, capabilities)
    if len(request.references) > max_references:
        noun = "reference image" if max_references == 1 else "reference images"
        message = f"Model `{model.name}` takes at most {max_references} {noun}, but got {len(request.references)}."
        raise BadRequest(message, param="image", code="array_above_max_length")


def check_compression(request: ImageRequest) -> None:
    """Refuse a quality of a format that is lossless. Raises BadRequest."""
    if request.output_compression not in {None, 100} and request.output_format == "png":  # 100 is OpenAI's default
        message = "'output_compression' works with the output formats jpeg and webp only: PNG is lossless."
        raise BadRequest(message, param="output_compression", code="unsupported_parameter")


def _check_guidance(request: ImageRequest, model: ImageModel, capabilities: Capabilities) -> None:
    negative_prompt, above = request.sampling.negative_prompt, capabilities.negative_prompt_above
    if negative_prompt and not capabilities.negative_prompt:
        message = f"Model `{model.name}` takes no negative prompt: leave it out, or say it in the prompt."
        raise BadRequest(message, param="negative_prompt", code="unsupported_parameter")
    own = model.checkpoint.sampling.guidance  # an answer's `parameters` have it, and may be sent back
    if request.sampling.guidance not in {None, own} and not capabilities.guidance:
        message = f"Model `{model.name}` draws without guidance: leave it out."
        raise BadRequest(message, param="guidance", code="unsupported_parameter")
    guidance = _resolve_sampling(request, model).guidance
    if negative_prompt and above is not None and guidance <= above:
        message = (
            f"'negative_prompt' has no effect here: model `{model.name}` uses it at a guidance above {above:g}, "
            f"and this is {guidance:g}. Send a higher 'guidance' too, or leave 'negative_prompt' out."
        )
        raise BadRequest(message, param="negative_prompt", code="unsupported_parameter")


def _check_capabilities(request: ImageRequest, model: ImageModel, capabilities: Capabilities) -> None:
    _check_guidance(request, model, capabilities)
    if request.background == "transparent" and not capabilities.transparent:
        message = f"Model `{model.name}` draws no transparent backgrounds: use 'opaque' or 'auto'."
        raise BadRequest(message, param="background", code="unsupported_value")
    long_prompt = request.sampling.long_prompt
    if long_prompt is not None and long_prompt not in capabilities.long_prompts:
        values = " or ".join(f"'{value}'" for value in capabilities.long_prompts)
        use = f"use {values}" if values else "leave it out"
        message = f"Model `{model.name}` can't read a long prompt with '{long_prompt}': {use}."
        raise BadRequest(message, param="long_prompt", code="unsupported_value")
    if request.sampling.steps not in {None, model.steps} and not capabilities.any_steps:
        message = f"Model `{model.name}` draws in {model.steps} steps only: leave 'steps' out."
        raise BadRequest(message, param="steps", code="unsupported_value")
    strength = request.sampling.strength
    if strength and not capabilities.any_steps and strength * model.steps < 1:
        least = f"{1 / model.steps:.2g}"
        message = (
            f"Model `{model.name}` redraws in whole steps of its {model.steps}: use a strength of at least {least}."
        )
        raise BadRequest(message, param="strength", code="decimal_below_min_value")
    if unsupported := [name for name in request.sampling.loras if name in capabilities.unsupported_adapters]:
        why = _why_failed(f"the adapter {unsupported[0]}", capabilities)
        message = f"The adapter '{unsupported[0]}' does not fit model `{model.name}`: leave it out.{why}"
        raise BadRequest(message, param="loras", code="unsupported_value")
    if request.mask is not None and not capabilities.mask:
        message = f"Model `{model.name}` takes no mask: leave it out."
        raise BadRequest(message, param="mask", code="unsupported_parameter")
    if not request.references and not capabilities.text:
        field, what = (
            ("image", "edits images: send 'image'")
            if capabilities.references
            else ("mask", "fills the part of an image that a mask marks: send 'image' and 'mask'")
        )
        raise BadRequest(f"Model `{model.name}` {what}.", param=field, code="missing_required_parameter")
    if request.references and request.mask is None and not capabilities.references:
        if capabilities.mask:
            message = f"Model `{model.name}` takes a reference image with a mask only: send 'mask' too."
            raise BadRequest(message, param="mask", code="missing_required_parameter")
        message = f"Model `{model.name}` takes no reference images."
        raise BadRequest(message, param="image", code="unsupported_parameter")


def unused_fields(
    request: ImageRequest, catalog: Catalog, capabilities_of: Callable[[CheckpointSpec], Capabilities | None]
) -> list[str]:
    """Return the fields of the request that have no effect with its model: the prompt, where the checkpoint draws
    without one; the fidelity to an image, where none is redrawn."""
    model = catalog.find_for_size(request.model, request.size)
    if model is None:
        return []
    drawn_with = model.drawn_with(request.reference_count)
    capabilities = capabilities_of(drawn_with.checkpoint)
    names = ["prompt"] if capabilities is not None and not capabilities.prompt else []
    return names if not request.input_fidelity or redraws(request, drawn_with) else [*names, "input_fidelity"]


def redraws(request: ImageRequest, model: ImageModel) -> bool:
    """Return whether a request is for a redrawn image, which its fidelity to the reference changes."""
    return request.task(model) is Task.REDRAW and request.scale is None


def _why_failed(what: str, capabilities: Capabilities | None) -> str:
    """Return the reason for which something failed in warmup, as a sentence; "" if there is none."""
    failed_checks = capabilities.failed_checks if capabilities is not None else ()
    reasons = (each.why for each in failed_checks if each.what == what)
    return next((f" The reason: {why}." for why in reasons), "")


def offered_loras(model: ImageModel, capabilities: Capabilities | None) -> list[str]:
    """Return the names of the adapters that a request may use, without those that failed in warmup. Reads a folder."""
    folder = model.checkpoint.runtime.lora_folder
    unsupported = capabilities.unsupported_adapters if capabilities is not None else ()
    return sorted({file.stem for file in folder.glob(WEIGHT_FILES)} - {*unsupported}) if folder else []


def offered_schedulers(model: ImageModel, capabilities: Capabilities | None) -> list[str]:
    """Return the schedulers that a request may choose: those of the catalog file, without those that failed in
    warmup."""
    unsupported = capabilities.unsupported_schedulers if capabilities is not None else ()
    return [name for name in model.checkpoint.schedulers if name not in unsupported]


def reference_limit(model: ImageModel, capabilities: Capabilities | None) -> int:
    """Return how many references a call may have."""
    at_once = _references_at_once(model, capabilities)
    return MAX_REFERENCES if model.checkpoint.sheet else at_once


def _references_at_once(model: ImageModel, capabilities: Capabilities | None) -> int:
    """Return how many references the pipeline takes, without a sheet of several."""
    if capabilities is not None and not capabilities.references and not capabilities.mask:
        return 0
    if capabilities is None or not capabilities.references:  # with a mask, there is one all the same
        return model.checkpoint.max_references
    return min(model.checkpoint.max_references, capabilities.references)


def check_loras(request: ImageRequest, model: ImageModel, capabilities: Capabilities | None) -> None:
    """Refuse adapters that the operator does not offer. Reads a folder. Raises BadRequest."""
    if not request.sampling.loras:
        return
    if model.checkpoint.runtime.lora_folder is None:
        message = f"Model `{model.name}` takes no LoRA adapters by request."
        raise BadRequest(message, param="loras", code="unsupported_parameter")
    offered = offered_loras(model, capabilities)
    if unknown := [name for name in request.sampling.loras if name not in offered]:
        message = (
            f"There is no adapter '{unknown[0]}' for model `{model.name}`. Adapters: {', '.join(offered) or 'none'}."
        )
        raise BadRequest(message, param="loras")


@dataclass(frozen=True, slots=True)
class InputImages:
    """The decoded images of a request. `controls` are in the order of its controls."""

    references: tuple[DecodedImage, ...] = ()
    mask: RawImage | None = None
    controls: tuple[DecodedImage, ...] = ()
    hole: Box | None = None  # the part of the mask that has paint


def hole_of(mask: RawImage | None) -> Box | None:
    """Return the part of a mask that has paint. Blocks."""
    if mask is None:
        return None
    width = mask.width_px
    rows = (mask.data[start : start + width] for start in range(0, len(mask.data), width))
    painted = {
        y: (width - len(row.lstrip(b"\0")), len(row.rstrip(b"\0"))) for y, row in enumerate(rows) if row.strip(b"\0")
    }
    if not painted:
        return None
    left, right = min(first for first, _ in painted.values()), max(last for _, last in painted.values())
    return Box(left, min(painted), right - left, max(painted) + 1 - min(painted))


def _region_of(request: ImageRequest, model: ImageModel, images: InputImages, size: Size) -> Box | None:
    """Return the part of the image that is drawn for a small hole in its mask; None for all of it."""
    hole, mask = images.hole, images.mask
    if request.mask_zoom is False or hole is None or mask is None or model.checkpoint.upstream is not None:
        return None
    scale = max(size.width_px / mask.width_px, size.height_px / mask.height_px)  # the mask is cut to the image's shape
    left = hole.left * scale - (mask.width_px * scale - size.width_px) / 2
    top = hole.top * scale - (mask.height_px * scale - size.height_px) / 2
    first = Box(math.floor(left), math.floor(top), math.ceil(hole.width * scale), math.ceil(hole.height * scale))
    return region_around(first, size.width_px, size.height_px, model.checkpoint.native_area_px)


def build_job(
    request: ImageRequest,
    model: ImageModel,
    call: BilledCall,
    images: InputImages,
    time_limit_s: float,
    capabilities: Capabilities | None = None,
) -> ImageJob:
    """Build the job of a request. Raises BadRequest for a size that the model does not draw."""
    shown = [*images.references, *images.controls]
    first = (shown[0].original_width_px, shown[0].original_height_px) if shown else None
    controls = control_inputs(request.controls, images.controls, model)
    follows = first is not None and request.scale is None and request.size in {None, "auto"}
    size = _size_of(request, model, first, capabilities)
    region = _region_of(request, model, images, size)
    at_once = _references_at_once(model, capabilities)
    sampling = _resolve_sampling(request, model)
    if capabilities is not None and not capabilities.any_steps:
        sampling = fit_refine_strength(sampling)
    used = {name: getattr(sampling, name) for name in SamplingOptions.model_fields} | {"loras": dict(sampling.loras)}
    if request.task(model).starts_from_noise or request.scale is not None:
        used["strength"] = None
    if model.checkpoint.conditioning == "upscale":
        used = {}
    if capabilities is not None and not capabilities.long_prompts:  # another server's, which does not tell
        used["long_prompt"] = None
    return ImageJob(
        id=call.call_id,
        checkpoint=model.checkpoint,
        prompt=request.prompt,
        sampling=sampling,
        width_px=size.width_px,
        height_px=size.height_px,
        n=request.n,
        seed=request.seed if request.seed is not None else secrets.randbelow(MAX_RANDOM_SEED),
        references=tuple(reference.image for reference in images.references),
        mask=images.mask,
        controls=controls,
        encoding=Encoding(
            request.output_format,
            100 if request.output_compression is None else request.output_compression,
            "trainedAlgorithmicMedia" if not images.references else "compositeWithTrainedAlgorithmicMedia",
            "transparent" if request.background == "transparent" else "opaque",  # "auto" too: no model draws another
        ),
        metadata={
            "prompt": request.prompt,
            "model": model.name,
            "checkpoint": model.checkpoint.name,
            **used,
            **({"scale": request.scale} if request.scale is not None else {}),
            **({"cut_from": f"{first[0]}x{first[1]}"} if first and follows and is_cut(size, first) else {}),
            **({"mask_zoom": request.mask_zoom} if request.mask_zoom is not None else {}),
            **({"drawn_region": [*region]} if region is not None else {}),
            **({"controls": {each.name: each.strength for each in controls}} if controls else {}),
            "software": "Darkroom",
        },
        time_limit_s=time_limit_s,
        owner=call.key_id,
        enlarges=request.scale is not None,
        region=region,
        previews=request.partial_images,
        sheet_from=at_once - 1 if request.reference_count > at_once and images.mask is None else None,
    )


def _size_of(
    request: ImageRequest, model: ImageModel, first: tuple[int, int] | None, capabilities: Capabilities | None
) -> Size:
    """Return the size of the images. `first` is that of the first image that was sent. Raises BadImageRequest."""
    try:
        if request.scale is not None and first is not None:
            return enlarged_size(model.sizes, request.scale, first)
        size = resolve_size(model.sizes, request.size, first)
    except SizeError as error:
        raise BadImageRequest(str(error), param="size" if request.scale is None else "scale") from error
    if size.width_px == size.height_px or capabilities is None or capabilities.any_ratio:
        return size
    if first is not None and request.size in {None, "auto"} and "1:1" in model.ratios:
        return resolve_size(model.sizes, "1:1", None)
    raise BadImageRequest(f"Model `{model.name}` draws squares only: use the ratio 1:1.", param="size")


def _resolve_sampling(request: ImageRequest, model: ImageModel) -> Sampling:
    """Return the checkpoint's defaults, replaced by the values that the request sets."""
    defaults = model.checkpoint.sampling
    if request.mask is not None:
        defaults = replace(defaults, strength=1.0)  # the masked area is repainted completely
    if request.input_fidelity == "high" and redraws(request, model):
        defaults = replace(defaults, strength=min(defaults.strength, FAITHFUL_STRENGTH))
    overrides = request.sampling.model_dump(exclude_none=True)
    overrides["loras"] = tuple(sorted(request.sampling.loras.items()))
    return defaults.resolve(**{"steps": model.steps_for(request.quality), **overrides})
