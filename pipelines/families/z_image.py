"""Z-Image: a weight that its published files have too many of.

Its denoiser takes lists, an item for each image, which shared passes see by themselves.
"""

from typing import ClassVar

from pipelines.families.generic import Family


class ZImage(Family):
    """Hooks of Z-Image and Z-Image-Turbo."""

    classes = ("ZImage*",)
    # In all published files in ComfyUI's names
    unneeded_weights: ClassVar = {"ZImageTransformer2DModel": r"^norm_final\.weight$"}
