"""Hunyuan-DiT: it would choose its own sizes."""

from typing import ClassVar

from pipelines.families.generic import Family


class HunyuanDiT(Family):
    """Hooks of Hunyuan-DiT, whose call draws the nearest of ten sizes of about a megapixel, unless
    `use_resolution_binning` is false."""

    classes = ("HunyuanDiT*",)
    always: ClassVar = {"use_resolution_binning": False}
