"""Qwen-Image: classifier-free guidance is `true_cfg_scale`, and acts only beside a negative prompt. Qwen-Image-Layered
takes an image apart into layers."""

from typing import Any, ClassVar, Final

from pipelines.families.generic import Call, Family, Mark

SMALL_PX: Final = 640  # sides of the two areas that the call of Qwen-Image-Layered knows
LARGE_PX: Final = 1024
LN_3: Final = 1.0986  # of a shift of 3, as configs say it


class QwenImage(Family):
    """Hooks of Qwen-Image and its edits. Prompts of different lengths share a pass, padded: the denoiser takes a mask
    for that."""

    classes = ("QwenImage*",)
    guidance_argument = "true_cfg_scale"
    no_negative_prompt = " "  # without one, even a blank one, there would be no guidance
    # A shift of 3 at any size, up to the last step. No shift_terminal is 0 here
    few_steps_noise: ClassVar = {"lightning": {"base_shift": LN_3, "max_shift": LN_3, "shift_terminal": 0.0}}
    # References have a timestep of their own, which the weights say by a tensor and the folder by its config
    marks: ClassVar = {"__index_timestep_zero__": Mark("Qwen-Image-Edit-2511", "zero_cond_t")}


class QwenImageLayered(QwenImage):
    """Hooks of Qwen-Image-Layered, whose call returns all layers of an image, each with alpha. It draws in the
    reference's shape."""

    classes = ("QwenImageLayered*",)
    layers = "layers"
    at_once = False

    def draws_text(self, call: Call) -> bool:
        """Return False: without a reference there is nothing to separate into layers."""
        return False

    def size_arguments(self, width_px: int, height_px: int) -> dict[str, Any]:
        """Return the area that is nearest to the size's; the shape is the reference's."""
        between = (SMALL_PX + LARGE_PX) // 2
        return {"resolution": SMALL_PX if width_px * height_px <= between**2 else LARGE_PX}

    def images(self, output: Any) -> Any:
        """Return the layers of the only image, from back to front."""
        return output.images[0]
