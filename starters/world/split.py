"""The held-out split, by hash: nothing needs to be stored, and every run has the same split."""

import hashlib
import re
from typing import Final, Literal

from starters.world.scene import Scene

Split = Literal["train", "held-out"]

TEXT_SHARE: Final = 0.1
SCENE_SHARE: Final = 0.06  # of the combinations of an object, its colour, the ground and the sky
COMMON_WORDS: Final = 4  # wordings this short are always in training: "a red boat" is too common


def text_split(text: str) -> Split:
    """By the words alone, without case and punctuation."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return "held-out" if len(words) > COMMON_WORDS and _share(" ".join(words)) < TEXT_SHARE else "train"


def scene_split(scene: Scene) -> Split:
    """Held out if one of its objects is in a held-out combination."""
    keys = (f"{thing.colour} {thing.kind} {scene.ground} {scene.sky}" for thing in scene.things)
    return "held-out" if any(_share(key) < SCENE_SHARE for key in keys) else "train"


def _share(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / (1 << 48)
