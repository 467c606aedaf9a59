"""Hunyuan-DiT: it would choose its own sizes."""

from typing import ClassVar

from pipelines.families.generic import Family


class HunyuanDiT(Family):
    """The call draws the one of ten sizes of about a megapixel that is nearest, unless it is told not to."""

    classes = ("HunyuanDiT*",)
    always: ClassVar = {"use_resolution_binning": False}
