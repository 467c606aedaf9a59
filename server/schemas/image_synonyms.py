"""Names that other image servers have for options of a call. What they ask for is drawn, or refused: a call whose size
or number was left unread would be charged for another image."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from server.errors import BadRequest

MAX_STEPS = 200
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Guidance = Annotated[float, Field(ge=0, le=50)]
Strength = Annotated[float, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=1, le=100_000)]
Count = Annotated[int, Field(ge=1)]
NAMED_SIZES = {  # of fal.ai
    "square": "1:1", "square_hd": "1:1", "portrait_4_3": "3:4", "portrait_16_9": "9:16", "landscape_4_3": "4:3",
    "landscape_16_9": "16:9",
}  # fmt: skip
SYNONYMS = {  # other servers' names -> ours
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "true_cfg_scale": "guidance",
    "cfg_scale": "guidance",
    "denoising_strength": "strength",
    "prompt_strength": "strength",
    "aspect_ratio": "size",
    "image_size": "size",
    "num_images": "n",
    "num_images_per_prompt": "n",
    "num_outputs": "n",
    "batch_size": "n",
    "inpaint_full_res": "mask_zoom",
}
REFUSED = {  # fields of other servers that change the image -> what to do instead
    "sampler_name": "send 'scheduler' with one of the model's 'schedulers' in /v1/models",
    "sampler": "send 'scheduler' with one of the model's 'schedulers' in /v1/models",
    "sampler_index": "send 'scheduler' with one of the model's 'schedulers' in /v1/models",
    "enable_hr": "send the image to POST /v1/images/upscale",
    "image_strength": "send 'strength', which is how far the image is redrawn: 1 minus this one",
    "image_prompt_strength": "send 'strength' or 'controls'",
    "n_iter": "send 'n'",
    "clip_skip": "leave it out",
    "tiling": "leave it out",
    "restore_faces": "leave it out",
    "inpainting_mask_invert": "send a mask that is white, or transparent, where to paint",
    "invert_mask": "send a mask that is white, or transparent, where to paint",
    "resolution": "send 'size', and the model of the tier",
}


def _size_of_name(value: object) -> object:
    """Return the size that another server's name, or its pair of sides, stands for."""
    if isinstance(value, dict) and value.keys() == {"width", "height"}:
        return f"{value['width']}x{value['height']}"
    return NAMED_SIZES.get(value, value) if isinstance(value, str) else value


NamedSize = Annotated[str | None, BeforeValidator(_size_of_name, json_schema_input_type=str | dict[str, Any] | None)]


def merge(body: BaseModel, name: str, ours: str) -> None:
    """Move the value of a synonym to our name for it, so that equal requests have equal fingerprints. Raises BadRequest
    for two names of one option that differ."""
    value = getattr(body, name)
    if value is None:
        return
    current = getattr(body, ours)
    if ours in body.model_fields_set and current not in (None, [], value):
        message = f"'{name}' is another name of '{ours}', for which this request has another value: send one of them."
        raise BadRequest(message, param=name, code="invalid_parameter_combination")
    setattr(body, ours, value)
    setattr(body, name, None)


class OtherNames(BaseModel):
    """Options under the names of other image servers: A1111, diffusers, SGLang, vLLM-Omni, fal, Together, Replicate."""

    num_inference_steps: Steps | None = None
    guidance_scale: Guidance | None = None
    true_cfg_scale: Guidance | None = None
    cfg_scale: Guidance | None = None
    denoising_strength: Strength | None = None
    prompt_strength: Strength | None = None
    width: Side | None = None
    height: Side | None = None
    aspect_ratio: str | None = None
    image_size: Annotated[
        str | None, BeforeValidator(_size_of_name, json_schema_input_type=str | dict[str, Any] | None)
    ] = None
    num_images: Count | None = None
    num_images_per_prompt: Count | None = None
    num_outputs: Count | None = None
    batch_size: Count | None = None
    inpaint_full_res: bool | None = None

    @model_validator(mode="after")
    def _merge_synonyms(self) -> Self:
        """Merge the names of each option, and the sides to a size. Raises BadRequest."""
        if (self.width is None) != (self.height is None):
            missing = "width" if self.width is None else "height"
            message = f"Missing required parameter: '{missing}'. Send both sides, or 'size'."
            raise BadRequest(message, param=missing, code="missing_required_parameter")
        if self.width is not None:
            sides = f"{self.width}x{self.height}"
            if self.image_size not in (None, sides):
                message = "'width' and 'height' are another size than 'image_size': send one of them."
                raise BadRequest(message, param="width", code="invalid_parameter_combination")
            self.image_size, self.width, self.height = sides, None, None
        for name, ours in SYNONYMS.items():
            merge(self, name, ours)
        return self
