"""Pipelines that enlarge an image which another one has drawn."""

from pipelines.families.generic import Family


class Upscalers(Family):
    """They draw at a multiple of the size of what they are given, which no call here asks for."""

    classes = ("StableDiffusion*UpscalePipeline", "*SuperResolutionPipeline")
    refused = "it enlarges an image that it is given, and draws none of its own"
