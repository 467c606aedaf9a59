"""Stable Diffusion 1 and 2, SDXL, and models that were trained from them in another way."""

from collections.abc import Mapping
from typing import ClassVar

from pipelines.families.generic import Family, Mark
from pipelines.families.task import Task


class StableDiffusion(Family):
    """Hooks of Stable Diffusion 1.x and 2.x: all classes with a U-Net and one CLIP."""

    classes = ("StableDiffusion[!3X]*",)
    short_names = ("sd",)

    def predicts_v(self, architecture: str) -> bool:
        """Return whether an architecture is 2.x at 768 px: "stable-diffusion-v2-768-v"."""
        return architecture.startswith("stable-diffusion-v2") and architecture.endswith("-v")


class StableDiffusionXL(Family):
    """SDXL, its refiner, and Playground 2.5, which has EDM's noise and latents of another scale.

    The codec overflows in float16, so that the classes cast it: they have code that looks for it, as the guess finds.
    """

    classes = ("StableDiffusionXL*",)
    short_names = ("sdxl",)
    marks: ClassVar = {"edm_mean": Mark("Playground 2.5")}


class StableDiffusion3(Family):
    """Hooks of Stable Diffusion 3 and 3.5."""

    classes = ("StableDiffusion3*",)
    adapter_weights: ClassVar = {"hyper": 0.125}


class StableUnCLIP(Family):
    """Hooks of Stable unCLIP. One class has a prior that reads prompts, the other an encoder that reads an image."""

    classes = ("StableUnCLIP*",)
    may_start_late = False  # its denoiser is given an image's embedding, too

    def siblings(self, class_name: str) -> Mapping[Task, str]:
        """Return no names: a class for another task can't be made of the same parts."""
        return {}
