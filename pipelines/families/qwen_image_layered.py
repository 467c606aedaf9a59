"""Qwen-Image-Layered: it takes an image apart into layers."""

from typing import Any

from pipelines.families.qwen_image import QwenImage

SIDES = (640, 1024)  # that it was trained for; an image has one of their areas
BETWEEN_PX = 832**2  # from which on the larger is the nearer one


class QwenImageLayered(QwenImage):
    """A call draws layers with alpha, the lowest first, which come as the one image that they are together."""

    classes = ("QwenImageLayered*",)

    def size_arguments(self, width_px: int, height_px: int) -> dict[str, Any]:
        """Return the area that is nearer; the shape is that of the reference."""
        return {"resolution": SIDES[width_px * height_px >= BETWEEN_PX]}

    def images(self, output: Any) -> Any:
        """Return the layers one over another, as a tensor of shape (1, 4, height, width)."""
        layers = output["images"][0].float()
        image = layers[:1].clone()
        for layer in layers.split(1)[1:]:
            alpha = layer[:, 3:]
            below = image[:, 3:] * (1 - alpha)
            whole = alpha + below
            image[:, :3] = (layer[:, :3] * alpha + image[:, :3] * below) / whole.clamp(min=1e-6)
            image[:, 3:] = whole
        return image
