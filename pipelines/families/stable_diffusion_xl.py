"""SDXL, and models that were trained from it in another way."""

from typing import ClassVar

from pipelines.families.generic import Family, Mark


class StableDiffusionXL(Family):
    """SDXL, its refiner, and Playground 2.5, which has EDM's noise and latents of another scale.

    The codec overflows in float16, so that the classes cast it: they have code that looks for it, as the guess finds.
    """

    classes = ("StableDiffusionXL*",)
    short_names = ("sdxl",)
    marks: ClassVar = {"edm_mean": Mark("Playground 2.5")}
