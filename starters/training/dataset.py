"""The training set: scenes and edits by number, and images for the decoders, cached as PNG files."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import numpy as np
from PIL import Image

from starters.world.edit_wording import Change
from starters.world.edits import Edit, sample_edit
from starters.world.render import render
from starters.world.scene import Scene, pick, sample_scene
from starters.world.split import scene_split, text_split

SEED: Final = 20261121

# How often each kind of edit is sampled. What is hard to draw is sampled more often than people ask for it: skies were
# learned long before skylines and small objects.
ONE_IMAGE_EDITS: Final[Mapping[Change, float]] = {
    "recolour": 0.10, "resize": 0.05, "add": 0.19, "remove": 0.08, "move": 0.06, "swap": 0.09, "replace": 0.10,
    "sky": 0.05, "ground": 0.03, "backdrop": 0.12, "clear backdrop": 0.02, "light": 0.06, "clear light": 0.02,
    "style": 0.03,
}  # fmt: skip
TWO_IMAGE_EDITS: Final[Mapping[Change, float]] = {"insert": 0.7, "borrow sky": 0.15, "borrow style": 0.15}

# Width and height in pixels: a quarter of a megapixel, and the sizes that the 1K models draw at. All are multiples of
# 64, which is what starter-beta's tokens cover. Squares and photo ratios are sampled more often than strips.
SMALL: Final = (
    (512, 512), (512, 512), (512, 512), (640, 448), (448, 640), (576, 448), (448, 576), (704, 384), (384, 704),
    (768, 320), (320, 768),
)  # fmt: skip
FULL: Final = (
    (1024, 1024), (1024, 1024), (1024, 1024), (1536, 1024), (1024, 1536), (1408, 1024), (1024, 1408), (1280, 1024),
    (1024, 1280), (1792, 1024), (1024, 1792), (1920, 960), (960, 1920), (2048, 896), (896, 2048), (2688, 704),
    (704, 2688), (3840, 512), (512, 3840),
)  # fmt: skip
Kind = Literal["small", "full"]
SIZES: Final[dict[Kind, tuple[tuple[int, int], ...]]] = {"small": SMALL, "full": FULL}


def rng_for(*key: int) -> np.random.Generator:
    """A random generator seeded by these numbers."""
    return np.random.default_rng((SEED, *key))


def train_scene(number: int) -> Scene:
    """Scene `number` of the training set."""
    rng = rng_for(1, number)
    while True:
        scene = sample_scene(rng)
        if scene_split(scene) == "train":
            return scene


def crowded_scene(number: int) -> Scene:
    """Scene `number` of the training set's scenes with an object in every place."""
    rng = rng_for(10, number)
    while True:
        scene = sample_scene(rng)
        if not scene.free_places and scene_split(scene) == "train":
            return scene


def train_edit(number: int) -> Edit:
    """Edit `number` of the training set; nothing in it is held out. Every fifth has a second image."""
    rng = rng_for(2, number)
    weights = ONE_IMAGE_EDITS if number % 5 else TWO_IMAGE_EDITS
    while True:
        change = pick(rng, tuple(weights), tuple(weights.values()))
        edit = sample_edit(rng, train_scene(int(rng.integers(1 << 30))), change)
        if edit is None or text_split(edit.instruction) != "train":
            continue
        scenes = [edit.after] if edit.reference is None else [edit.after, edit.reference]
        if all(scene_split(scene) == "train" for scene in scenes):
            return edit


def size_of(kind: Kind, number: int) -> tuple[int, int]:
    sizes = SIZES[kind]
    return sizes[number % len(sizes)]


def image(folder: Path, kind: Kind, number: int) -> Image.Image:
    """The image of scene `number`, from the cache if it is there."""
    file = folder / "pictures" / kind / f"{number:05}.png"
    if file.exists():
        return Image.open(file).convert("RGB")
    image = render(train_scene(number), *size_of(kind, number))
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")  # renamed when complete: several runs may share the folder
    image.save(unfinished, format="PNG", compress_level=1)
    unfinished.rename(file)
    return image
