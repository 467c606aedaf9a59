"""Kandinsky 2 has names of another order for its classes for other tasks; 3 and 5 would choose their own sizes."""

from typing import Any

from pipelines.families.generic import Family


class KandinskyCombined(Family):
    """A prior and a decoder in one pipeline: KandinskyV22CombinedPipeline and KandinskyV22Img2ImgCombinedPipeline."""

    classes = ("Kandinsky*CombinedPipeline",)
    output_type = "np"
    multiple_px = 64  # the codec halves three times, and the denoiser is given as much again
    name_ending = "CombinedPipeline"


class Kandinsky3(Family):
    """Hooks of Kandinsky 3. Its codec is not called `vae`, so no image can start late."""

    classes = ("Kandinsky3*",)
    output_type = "np"
    multiple_px = 64  # to which the call rounds both sides up
    may_start_late = False


class Kandinsky5(Family):
    """Hooks of Kandinsky 5, whose call draws the nearest of seven sizes, unless the size that is asked for is among
    them."""

    classes = ("Kandinsky5*",)
    may_start_late = False  # its latents have a dimension for time

    def prepared(self, pipeline: Any, width_px: int, height_px: int) -> Any:
        """Return the pipeline with this size alone to choose from."""
        pipeline.resolutions = [(width_px, height_px)]
        return pipeline
