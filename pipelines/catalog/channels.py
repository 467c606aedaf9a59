"""The channels of the images that a checkpoint's codec reads and draws, by its config."""

from collections.abc import Mapping
from typing import Any, Literal

GREY, RGBA = 1, 4
ReadMode = Literal["RGB", "RGBA", "L"]


def read_mode(codec: Mapping[str, Any]) -> ReadMode:
    """Return the mode in which a codec with this config takes an image. Without a codec, images are colours."""
    channels = _first_value(codec, "in_channels", "input_channels")
    return "RGBA" if channels == RGBA else "L" if channels == GREY else "RGB"


def draws_alpha(codec: Mapping[str, Any]) -> bool:
    """Return whether a codec with this config draws images with an alpha channel."""
    return _first_value(codec, "out_channels", "input_channels") == RGBA


def _first_value(codec: Mapping[str, Any], *names: str) -> object:
    """Return the value of the first of these names that a config has: some codecs call both sides by one name."""
    return next((codec[name] for name in names if name in codec), None)
