"""JoyImage-Edit: it would choose its own sizes. Plus has an argument of another name for several references."""

from typing import Any

from pipelines.families.generic import Family


class JoyImageEdit(Family):
    """Hooks of JoyImage-Edit, whose call draws the nearest of its own sizes of about a megapixel, whatever size it is
    given."""

    classes = ("JoyImageEditPipeline",)

    def prepared(self, pipeline: Any, width_px: int, height_px: int) -> Any:
        """Return the pipeline, changed to take this size as the nearest."""
        pipeline.vae_image_processor.get_default_height_width = lambda *_: (height_px, width_px)
        return pipeline


class JoyImageEditPlus(Family):
    """Hooks of JoyImage-Edit-Plus, whose call takes a list of references."""

    classes = ("JoyImageEditPlus*",)
    references_argument = "images"
