"""Kandinsky 5: it would choose its own sizes."""

from typing import Any

from pipelines.families.generic import Family


class Kandinsky5(Family):
    """The call draws the one of seven sizes that is nearest, unless it finds the size that is asked for among them."""

    classes = ("Kandinsky5*",)
    may_start_late = False  # its latents have a dimension for time

    def prepared(self, pipeline: Any, width_px: int, height_px: int) -> Any:
        """Return the pipeline with this size alone to choose from."""
        pipeline.resolutions = [(width_px, height_px)]
        return pipeline
