"""GLM-Image: its tokens are of 32 px, and are drawn before the image is.

Its edits fail in transformers. That is found by trying, and so needs no hook.
"""

from typing import Any

from pipelines.families.generic import Family


class GlmImage(Family):
    """Hooks of GLM-Image, whose tokens are 2 x 2 patches of 2 x 2 latents each."""

    classes = ("GlmImage*",)

    def size_multiple(self, pipeline: Any) -> int:
        """Return the side of a token, in px."""
        return int(pipeline.vae_scale_factor * pipeline.transformer.config.patch_size * 2)
