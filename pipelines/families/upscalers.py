"""Pipelines that enlarge an image which another one has drawn."""

from pipelines.families.generic import Family


class Upscalers(Family):
    """Refuses diffusers' upscaling pipelines: they draw at a multiple of the size of an image that they are given."""

    classes = ("StableDiffusion*UpscalePipeline", "*SuperResolutionPipeline")
    refused = "it enlarges an image that it is given, and draws none of its own"
