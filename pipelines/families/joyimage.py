"""JoyImage-Edit: it would choose its own sizes."""

from typing import Any

from pipelines.families.generic import Family


class JoyImageEdit(Family):
    """The call draws the one of its sizes of about a megapixel that is nearest to the size that it is given."""

    classes = ("JoyImageEditPipeline",)

    def prepared(self, pipeline: Any, width_px: int, height_px: int) -> Any:
        """Return the pipeline with this size as the nearest."""
        pipeline.vae_image_processor.get_default_height_width = lambda *_: (height_px, width_px)
        return pipeline
