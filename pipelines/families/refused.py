"""Classes of diffusers that calls here can't draw with, whatever the checkpoint."""

from pipelines.families.generic import Family


class ChromaInpaint(Family):
    """Refuses Chroma's class for inpainting: its call reads a key that the config of Chroma's denoiser does not
    have."""

    classes = ("ChromaInpaint*",)
    refused = (
        "its call in diffusers reads guidance_embeds, which no Chroma has; ChromaPipeline draws with the same parts"
    )


class CogView4Control(Family):
    """Refuses CogView4 Control: its call encodes the control image without its generator, so the same request gives
    other images, and runs share the noise."""

    classes = ("CogView4Control*",)
    refused = "its call reads the control image with noise of torch's global generator, which no seed decides"


class Cosmos2(Family):
    """Refuses Cosmos 2: its constructor raises without the guardrail, whose models are on a hub."""

    classes = ("Cosmos2TextToImage*",)
    refused = "it needs the guardrail of NVIDIA, which its code loads from a hub, and no hub is asked here"


class Upscalers(Family):
    """Refuses diffusers' upscaling pipelines: they draw at a multiple of the size of an image that they are given."""

    classes = ("StableDiffusion*UpscalePipeline", "*SuperResolutionPipeline")
    refused = "it enlarges an image that it is given, and draws none of its own"
