"""Bria FIBO Edit: it would stretch references to sizes of its own."""

from typing import Any

from pipelines.families.generic import Family


class BriaFiboEdit(Family):
    """The call takes references as they are once it is told so."""

    classes = ("BriaFiboEdit*",)
    reads_any_size = True

    def size_arguments(self, width_px: int, height_px: int) -> dict[str, Any]:
        """Return the size, and the arguments that keep the call from stretching the references."""
        return {"width": width_px, "height": height_px, "_auto_resize": False}
