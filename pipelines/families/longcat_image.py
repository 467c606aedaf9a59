"""LongCat-Image: it would draw from a prompt of its own."""

from typing import ClassVar

from pipelines.families.generic import Family


class LongCatImage(Family):
    """Hooks of LongCat-Image, whose call has its text encoder rewrite the prompt, in hundreds of tokens, unless
    `enable_prompt_rewrite` is false."""

    classes = ("LongCatImage*",)
    always: ClassVar = {"enable_prompt_rewrite": False}
