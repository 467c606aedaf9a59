"""FLUX.1 Kontext: it would choose its own sizes."""

from typing import Any

from pipelines.families.flux import Flux


class FluxKontext(Flux):
    """Hooks of FLUX.1 Kontext, whose call scales references to one of 17 sizes, and draws a megapixel, unless it is
    told not to."""

    classes = ("FluxKontext*",)
    reads_any_size = True

    def size_arguments(self, width_px: int, height_px: int) -> dict[str, Any]:
        """Return the size, and the arguments that keep the call from scaling it and the references."""
        return {"width": width_px, "height": height_px, "max_area": width_px * height_px, "_auto_resize": False}
