"""Kandinsky 2: its classes for other tasks have names of another order."""

from pipelines.families.generic import Family


class KandinskyCombined(Family):
    """A prior and a decoder in one pipeline: KandinskyV22CombinedPipeline and KandinskyV22Img2ImgCombinedPipeline."""

    classes = ("Kandinsky*CombinedPipeline",)
    output_type = "np"
    multiple_px = 64  # the codec halves three times, and the denoiser is given as much again
    name_ending = "CombinedPipeline"
