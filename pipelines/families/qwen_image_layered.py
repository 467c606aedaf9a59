"""Qwen-Image-Layered: it takes an image apart into layers."""

from typing import Any, Final

from pipelines.families.generic import Call
from pipelines.families.qwen_image import QwenImage

SMALL_PX: Final = 640  # sides of the two areas that the call knows
LARGE_PX: Final = 1024


class QwenImageLayered(QwenImage):
    """Hooks of Qwen-Image-Layered, whose call returns all layers of an image, each with alpha. It draws in the
    reference's shape."""

    classes = ("QwenImageLayered*",)
    layers = "layers"
    at_once = False

    def draws_text(self, call: Call) -> bool:
        """Return False: without a reference there is nothing to separate into layers."""
        return False

    def size_arguments(self, width_px: int, height_px: int) -> dict[str, Any]:
        """Return the area that is nearest to the size's; the shape is the reference's."""
        between = (SMALL_PX + LARGE_PX) // 2
        return {"resolution": SMALL_PX if width_px * height_px <= between**2 else LARGE_PX}

    def images(self, output: Any) -> Any:
        """Return the layers of the only image, from back to front."""
        return output.images[0]
