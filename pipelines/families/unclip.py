"""Stable unCLIP: its classes have other parts than each other."""

from collections.abc import Container, Mapping

from pipelines.families.generic import Call, Family
from pipelines.families.task import Task


class StableUnCLIP(Family):
    """One has a prior that reads prompts, the other an encoder that reads an image."""

    classes = ("StableUnCLIP*",)

    def siblings(self, class_name: str) -> Mapping[Task, str]:
        """Return no names: a class for another task can't be made of the same parts."""
        return {}

    def starts_late(self, call: Call, methods: Container[str]) -> bool:
        """Return False: its denoiser is given an image's embedding, too."""
        return False
