"""From what the caller asked to a frozen job in which nothing is left to default. Pure."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pipelines.catalog.images import Catalog, ImageModel
from pipelines.catalog.sizes import SizeError, resolve_size
from pipelines.protocol.images import Encoding, ImageFormat, ImageJob, Picture
from pipelines.protocol.messages import Abilities
from server.backends.image_decoding import DecodedPicture
from server.errors import BadImageRequest, BadRequest, Forbidden, NotFound
from server.flows.references import Reference

MAX_SEED = 2**53  # seeds that survive JSON in every language


@dataclass(frozen=True, slots=True)
class ImageCall:
    """One call of an image route, its fields as they were sent and of the right types; None is absent."""

    endpoint: str
    results_base: str  # where results are reached, without a slash at the end
    prompt: str
    references: tuple[Reference, ...]
    mask: Reference | None
    model: str | None
    n: int
    size: str | None
    quality: str | None
    response_format: Literal["url", "b64_json"]
    output_format: ImageFormat
    output_compression: int | None
    background: str
    moderation: str
    stream: bool
    partial_images: int
    seed: int | None
    negative_prompt: str | None
    steps: int | None
    guidance: float | None
    strength: float | None
    loras: Mapping[str, float]


def find_model(catalog: Catalog, name: str | None, groups: frozenset[str]) -> ImageModel:
    """The model of a name, an alias or no name. Raises NotFound or Forbidden."""
    model = catalog.find(name)
    if model is None:
        known = ", ".join(catalog.models)
        message = f"The model `{name}` does not exist or you do not have access to it. Image models here: {known}."
        raise NotFound(message, param="model", code="model_not_found")
    if model.group not in groups:
        raise Forbidden(
            f"Your API key does not have access to model `{model.name}`: it lacks the group '{model.group}'. "
            "Ask the operator for a key with that group (darkroom keys create --group).",
            param="model",
        )
    return model


def check_options(call: ImageCall, model: ImageModel, max_n: int, abilities: Abilities | None) -> None:
    """Refuse what this model or this server can't do, by field. Raises BadRequest.

    `abilities` is None until the checkpoint has been loaded; what it can't do is then found out by the job.
    """
    if not call.prompt.strip():
        raise BadRequest("Invalid 'prompt': it must not be empty.", param="prompt", code="string_below_min_length")
    if call.n > max_n:
        message = f"Invalid 'n': integer above maximum value. Expected a value <= {max_n}, but got {call.n} instead."
        raise BadRequest(message, param="n", code="integer_above_max_value")
    if call.quality is not None and model.quality is None:
        message = f"'quality' is not supported with model `{model.name}`: leave it out."
        raise BadRequest(message, param="quality", code="unsupported_parameter")
    if call.partial_images and not call.stream:
        message = "'partial_images' works with a stream only: send 'stream': true too, or leave it out."
        raise BadRequest(message, param="partial_images", code="unsupported_parameter")
    if call.background == "transparent":
        message = "Transparent backgrounds are not supported: use 'opaque' or 'auto'."
        raise BadRequest(message, param="background", code="unsupported_value")
    if call.output_compression not in {None, 100} and call.output_format == "png":  # 100 is OpenAI's default
        message = "'output_compression' works with the output formats jpeg and webp only: PNG is lossless."
        raise BadRequest(message, param="output_compression", code="unsupported_parameter")
    if call.strength is not None and not _heeds_strength(call, model):
        message = (
            f"'strength' means nothing here: model `{model.name}` heeds it with a mask alone. Leave it out."
            if call.references
            else "'strength' is how far a reference image is redrawn: send 'image' too, or leave it out."
        )
        raise BadRequest(message, param="strength", code="unsupported_parameter")
    if abilities is not None:
        _check_abilities(call, model, abilities)
    most = model.checkpoint.max_references
    if len(call.references) > most:
        noun = "reference image" if most == 1 else "reference images"
        message = f"Model `{model.name}` takes at most {most} {noun}, but got {len(call.references)}."
        raise BadRequest(message, param="image", code="array_above_max_length")


def _heeds_strength(call: ImageCall, model: ImageModel) -> bool:
    """Whether this is redrawn from a picture; native references are only looked at."""
    return bool(call.references) and (call.mask is not None or model.checkpoint.conditioning == "img2img")


def _check_abilities(call: ImageCall, model: ImageModel, abilities: Abilities) -> None:
    if call.negative_prompt and not abilities.negative_prompt:
        message = f"Model `{model.name}` takes no negative prompt: leave it out, or say it in the prompt."
        raise BadRequest(message, param="negative_prompt", code="unsupported_parameter")
    if call.guidance is not None and not abilities.guidance:
        message = f"Model `{model.name}` draws without guidance: leave it out."
        raise BadRequest(message, param="guidance", code="unsupported_parameter")
    if call.mask is not None and not abilities.inpaint:
        message = f"Model `{model.name}` takes no mask: leave it out."
        raise BadRequest(message, param="mask", code="unsupported_parameter")
    redrawn = call.references and call.mask is None and model.checkpoint.conditioning == "img2img"
    if redrawn and not abilities.img2img:
        message = f"Model `{model.name}` takes no reference images."
        raise BadRequest(message, param="image", code="unsupported_parameter")


def check_loras(call: ImageCall, model: ImageModel) -> None:
    """Refuse adapters that the operator does not offer. Reads a folder. Raises BadRequest."""
    folder = model.checkpoint.runtime.lora_folder
    if not call.loras:
        return
    if folder is None:
        message = f"Model `{model.name}` takes no LoRA adapters by request."
        raise BadRequest(message, param="loras", code="unsupported_parameter")
    offered = sorted(file.stem for file in folder.glob("*.safetensors"))
    if unknown := [name for name in call.loras if name not in offered]:
        message = (
            f"There is no adapter '{unknown[0]}' for model `{model.name}`. Adapters: {', '.join(offered) or 'none'}."
        )
        raise BadRequest(message, param="loras")


def resolve(
    call: ImageCall,
    model: ImageModel,
    call_id: str,
    references: tuple[DecodedPicture, ...],
    mask: Picture | None,
    time_limit_s: float,
) -> ImageJob:
    """The job. Raises BadRequest for a size that the model can't draw."""
    sampling = model.checkpoint.sampling
    first = (references[0].original_width_px, references[0].original_height_px) if references else None
    try:
        size = resolve_size(model.sizes, call.size, first)
    except SizeError as error:
        raise BadImageRequest(str(error), param="size") from error
    seed = call.seed if call.seed is not None else secrets.randbelow(MAX_SEED)
    steps = call.steps or model.steps_for(call.quality)
    guidance = sampling.guidance if call.guidance is None else call.guidance
    usual = sampling.strength if mask is None else 1.0  # what is masked is to be painted anew
    strength = usual if call.strength is None else call.strength
    negative_prompt = sampling.negative_prompt if call.negative_prompt is None else call.negative_prompt
    used = {
        "model": model.name,
        "checkpoint": model.checkpoint.name,
        "steps": steps,
        "guidance": guidance,
        "strength": strength if _heeds_strength(call, model) else None,
        "negative_prompt": negative_prompt,
        "loras": dict(sorted(call.loras.items())),
    }
    return ImageJob(
        id=call_id,
        checkpoint=model.checkpoint,
        prompt=call.prompt,
        negative_prompt=negative_prompt,
        width_px=size.width_px,
        height_px=size.height_px,
        n=call.n,
        steps=steps,
        guidance=guidance,
        strength=strength,
        seed=seed,
        references=tuple(reference.picture for reference in references),
        mask=mask,
        encoding=Encoding(call.output_format, 100 if call.output_compression is None else call.output_compression),
        metadata={"prompt": call.prompt, **used, "software": "Darkroom"},
        time_limit_s=time_limit_s,
        loras=tuple(sorted(call.loras.items())),
        previews=call.partial_images,
    )
