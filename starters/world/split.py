"""What is kept out of training, by hash: so that nothing needs to be stored, and every run keeps out the same."""

import hashlib
import re
from typing import Final, Literal

from starters.world.scene import Scene

Split = Literal["train", "held-out"]

TEXT_SHARE: Final = 0.1
SCENE_SHARE: Final = 0.06  # of the combinations of an object, its colour, the ground and the sky
COMMON_WORDS: Final = 4  # so short a wording is always trained on: "a red boat" is too common to miss


def text_split(text: str) -> Split:
    """By the wording alone; case and punctuation don't make another one."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return "held-out" if len(words) > COMMON_WORDS and _share(" ".join(words)) < TEXT_SHARE else "train"


def scene_split(scene: Scene) -> Split:
    """Held out as soon as one of its objects makes a combination that is."""
    keys = (f"{thing.colour} {thing.kind} {scene.ground} {scene.sky}" for thing in scene.things)
    return "held-out" if any(_share(key) < SCENE_SHARE for key in keys) else "train"


def _share(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / (1 << 48)
