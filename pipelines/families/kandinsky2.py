"""Kandinsky 2: its classes for other tasks have names of another order."""

from collections.abc import Mapping
from typing import Any

from pipelines.families.generic import SUFFIXES, Family
from pipelines.families.task import Task

MULTIPLE_PX = 64  # of sides: the codec halves three times, and the denoiser is given as much again


class KandinskyCombined(Family):
    """A prior and a decoder in one pipeline: KandinskyV22CombinedPipeline and KandinskyV22Img2ImgCombinedPipeline."""

    classes = ("Kandinsky*CombinedPipeline",)
    output_type = "np"

    def size_multiple(self, pipeline: Any) -> int:
        """Return the px to which the call rounds both sides up."""
        return MULTIPLE_PX

    def siblings(self, class_name: str) -> Mapping[Task, str]:
        """Return the names of the classes for other tasks."""
        stem = class_name.removesuffix("CombinedPipeline")
        for suffix in SUFFIXES.values():
            stem = stem.removesuffix(suffix)
        return {task: f"{stem}{suffix}CombinedPipeline" for task, suffix in SUFFIXES.items()}
