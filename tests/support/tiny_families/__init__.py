"""Tiny checkpoints of many pipeline classes, with seeded random weights: what researchers have on their disks.

`FAMILIES` makes each by name. They draw noise, so tests look at sizes, at what changes an image, and at messages.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.tiny_families import editors, flow_models, from_text, older, references, unets
from tests.support.tiny_families.glm import glm_image

Maker = Callable[[], Any]

FAMILIES: Mapping[str, Maker] = {
    **unets.MAKERS,
    **older.MAKERS,
    **flow_models.MAKERS,
    **from_text.MAKERS,
    **references.MAKERS,
    **editors.MAKERS,
    "glm-image": glm_image,
    "image-variation": unets.image_variation,
}
NEED_TORCHVISION = {
    *(
        "flux2",
        "qwen-edit",
        "qwen-edit-plus",
        "qwen-layered",
        "longcat-image",
        "nucleusmoe-image",
        "kandinsky5",
        "qwen-image-21",
    ),
    *("longcat-edit", "joyimage-edit", "joyimage-edit-plus", "kandinsky5-i2i", "fibo2", "dreamlite"),
    *("dreamlite-mobile", "qwen-layered"),
}
NEEDED = {  # modules by family
    **dict.fromkeys(NEED_TORCHVISION | {"omnigen"}, "torchvision"),
    **dict.fromkeys(("kolors", "kolors-pag"), "sentencepiece"),
    **dict.fromkeys(("prx", "prx-pixel"), "ftfy"),
}


def make_family(name: str, folder: Path) -> Path:
    """Save the checkpoint of a family as a diffusers folder."""
    FAMILIES[name]().save_pretrained(folder, safe_serialization=True)
    return folder
