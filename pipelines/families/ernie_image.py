"""ERNIE-Image: it would draw from a prompt of its own."""

from typing import ClassVar

from pipelines.families.generic import Family


class ErnieImage(Family):
    """The call has a language model of the checkpoint rewrite the prompt, by torch's global generator, unless it is
    told to take what was sent."""

    classes = ("ErnieImage*",)
    always: ClassVar = {"use_pe": False}
