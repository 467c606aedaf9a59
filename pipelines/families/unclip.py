"""Stable unCLIP: its classes have other parts than each other."""

from collections.abc import Mapping

from pipelines.families.generic import Family
from pipelines.families.task import Task


class StableUnCLIP(Family):
    """Hooks of Stable unCLIP. One class has a prior that reads prompts, the other an encoder that reads an image."""

    classes = ("StableUnCLIP*",)
    may_start_late = False  # its denoiser is given an image's embedding, too

    def siblings(self, class_name: str) -> Mapping[Task, str]:
        """Return no names: a class for another task can't be made of the same parts."""
        return {}
