"""Kandinsky 3: it rounds sizes up."""

from collections.abc import Container
from typing import Any

from pipelines.families.generic import Call, Family

MULTIPLE_PX = 64  # of sides


class Kandinsky3(Family):
    """Its codec has another name than those of others, so that no image starts late."""

    classes = ("Kandinsky3*",)
    output_type = "np"

    def size_multiple(self, pipeline: Any) -> int:
        """Return the px to which the call rounds both sides up."""
        return MULTIPLE_PX

    def starts_late(self, call: Call, methods: Container[str]) -> bool:
        """Return False: its codec is not where those of others are."""
        return False
