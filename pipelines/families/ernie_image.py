"""ERNIE-Image: it would draw from a prompt of its own."""

from typing import ClassVar

from pipelines.families.generic import Family


class ErnieImage(Family):
    """Hooks of ERNIE-Image, whose call has a language model of the checkpoint rewrite the prompt, with torch's global
    generator, unless `use_pe` is false."""

    classes = ("ErnieImage*",)
    always: ClassVar = {"use_pe": False}
