"""Stable Diffusion 1 and 2: the marks in the files of 2.x."""

from pipelines.families.generic import Family


class StableDiffusion(Family):
    """Hooks of Stable Diffusion 1.x and 2.x: all classes with a U-Net and one CLIP."""

    classes = ("StableDiffusion[!3X]*",)
    short_names = ("sd",)

    def predicts_v(self, architecture: str) -> bool:
        """Return whether an architecture is 2.x at 768 px: "stable-diffusion-v2-768-v"."""
        return architecture.startswith("stable-diffusion-v2") and architecture.endswith("-v")
