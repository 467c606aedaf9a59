"""Qwen-Image-Layered: it takes an image apart into layers."""

from pipelines.families.qwen_image import QwenImage


class QwenImageLayered(QwenImage):
    """A call returns several images with alpha, which are one only together."""

    classes = ("QwenImageLayered*",)
    refused = "it takes an image apart into layers, which answers here do not have"
