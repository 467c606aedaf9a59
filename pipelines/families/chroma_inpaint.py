"""Chroma under a mask: a class of diffusers that fails for every checkpoint."""

from pipelines.families.generic import Family


class ChromaInpaint(Family):
    """Refuses Chroma's class for inpainting: its call reads a key that the config of Chroma's denoiser does not
    have."""

    classes = ("ChromaInpaint*",)
    refused = (
        "its call in diffusers reads guidance_embeds, which no Chroma has; ChromaPipeline draws with the same parts"
    )
