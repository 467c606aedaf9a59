"""Qwen-Image: classifier-free guidance is `true_cfg_scale`, and acts only beside a negative prompt."""

from typing import ClassVar

from pipelines.families.generic import Family, Mark


class QwenImage(Family):
    """Hooks of Qwen-Image and its edits. Prompts of different lengths share a pass, padded: the denoiser takes a mask
    for that."""

    classes = ("QwenImage*",)
    guidance_argument = "true_cfg_scale"
    no_negative_prompt = " "  # without one, even a blank one, there would be no guidance
    # References have a timestep of their own, which the weights say by a tensor and the folder by its config
    marks: ClassVar = {"__index_timestep_zero__": Mark("Qwen-Image-Edit-2511", "zero_cond_t")}
