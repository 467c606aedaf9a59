"""DeepFloyd IF: it draws pixels, and its class for masks has a name of its own."""

from collections.abc import Mapping

from pipelines.families.generic import Family
from pipelines.families.task import Task


class DeepFloydIF(Family):
    """Hooks of DeepFloyd IF, the first of its three stages. The others enlarge the image."""

    classes = ("IFPipeline", "IFImg2ImgPipeline", "IFInpaintingPipeline")
    output_type = "np"

    def siblings(self, class_name: str) -> Mapping[Task, str]:
        """Return the names of the classes for other tasks, by task."""
        return {Task.REDRAW: "IFImg2ImgPipeline", Task.INPAINT: "IFInpaintingPipeline"}
