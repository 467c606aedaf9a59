"""LongCat-Image: it would draw from a prompt of its own."""

from typing import ClassVar

from pipelines.families.generic import Family


class LongCatImage(Family):
    """The call has its text encoder rewrite the prompt, in hundreds of tokens, unless it is told to take what was
    sent."""

    classes = ("LongCatImage*",)
    always: ClassVar = {"enable_prompt_rewrite": False}
