"""Kandinsky 5: it would choose its own sizes."""

from typing import Any

from pipelines.families.generic import Family


class Kandinsky5(Family):
    """Hooks of Kandinsky 5, whose call draws the nearest of seven sizes, unless the size that is asked for is among
    them."""

    classes = ("Kandinsky5*",)
    may_start_late = False  # its latents have a dimension for time

    def prepared(self, pipeline: Any, width_px: int, height_px: int) -> Any:
        """Return the pipeline with this size alone to choose from."""
        pipeline.resolutions = [(width_px, height_px)]
        return pipeline
