"""Scenes by number and their pictures, rendered once and kept as PNG files."""

import os
from pathlib import Path
from typing import Final, Literal

import numpy as np
from PIL import Image

from pipelines.starter.world.edit_wording import Change
from pipelines.starter.world.edits import Edit, sample_edit
from pipelines.starter.world.render import render
from pipelines.starter.world.scene import Scene, pick, sample_scene
from pipelines.starter.world.split import scene_split, text_split

SEED: Final = 20261121
Part = Literal["scene", "before", "after", "second"]
WITH_SECOND: Final[tuple[Change, ...]] = ("insert", "borrow sky", "borrow style")

# Width and height in pixels: a sixteenth and a quarter of a megapixel, and the sizes that the 1K models draw at. All
# are multiples of 64, which is what starter-beta's tokens cover. Squares and photographs come more often than strips.
TINY: Final = ((256, 256), (320, 192), (192, 320))
SMALL: Final = (
    (512, 512), (512, 512), (512, 512), (640, 448), (448, 640), (576, 448), (448, 576), (704, 384), (384, 704),
    (768, 320), (320, 768),
)  # fmt: skip
FULL: Final = (
    (1024, 1024), (1024, 1024), (1024, 1024), (1536, 1024), (1024, 1536), (1408, 1024), (1024, 1408), (1280, 1024),
    (1024, 1280), (1792, 1024), (1024, 1792), (1920, 960), (960, 1920), (2048, 896), (896, 2048), (2688, 704),
    (704, 2688), (3840, 512), (512, 3840),
)  # fmt: skip
PIXELS_OF_A_REFERENCE: Final = 1 << 20  # larger ones the klein pipeline reduces to as many


def reference_size(width: int, height: int) -> tuple[int, int]:
    """What the klein pipeline makes of a reference of this size."""
    scale = min(1.0, (PIXELS_OF_A_REFERENCE / (width * height)) ** 0.5)
    return int(width * scale) // 64 * 64, int(height * scale) // 64 * 64


SIZES: Final = {
    "tiny": TINY,
    "small": SMALL,
    "full": FULL,
    "reference": tuple(reference_size(*size) for size in FULL),
}


def rng_for(*key: int) -> np.random.Generator:
    """A generator that these numbers decide."""
    return np.random.default_rng((SEED, *key))


def train_scene(number: int) -> Scene:
    """Scene `number` of the training set."""
    rng = rng_for(1, number)
    while True:
        scene = sample_scene(rng)
        if scene_split(scene) == "train":
            return scene


def train_edit(number: int) -> Edit:
    """An edit of scene `number`, with nothing in it that is held out. Every fifth one has a second picture."""
    rng = rng_for(2, number)
    while True:
        change = pick(rng, WITH_SECOND, (0.7, 0.15, 0.15)) if number % 5 == 0 else None
        before = train_scene(number if change is None else int(rng.integers(1 << 30)))
        edit = sample_edit(rng, before, change)
        if edit is None or text_split(edit.instruction) != "train":
            continue
        scenes = [edit.after] if edit.reference is None else [edit.after, edit.reference]
        if all(scene_split(scene) == "train" for scene in scenes):
            return edit


def scene_of(part: Part, number: int) -> Scene | None:
    """A scene of the training set: `number` itself, or a part of the edit of that number."""
    if part == "scene":
        return train_scene(number)
    edit = train_edit(number)
    return {"before": edit.before, "after": edit.after, "second": edit.reference}[part]


def size_of(kind: str, number: int) -> tuple[int, int]:
    """The size that scene `number` is rendered at."""
    sizes = SIZES[kind]
    return sizes[number % len(sizes)]


def numbers_of(kind: str, size: tuple[int, int], count: int) -> list[int]:
    """Those of the first `count` numbers that are rendered at this size."""
    return [number for number in range(count) if size_of(kind, number) == size]


def picture(folder: Path, kind: str, number: int, part: Part = "scene") -> Image.Image | None:
    """The picture of `scene_of(part, number)`, rendered now if it never was."""
    file = folder / "pictures" / kind / part / f"{number:05}.png"
    if file.exists():
        return Image.open(file).convert("RGB")
    scene = scene_of(part, number)
    if scene is None:
        return None
    image = render(scene, *size_of(kind, number))
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")  # renamed when whole: several runs may fill the folder
    image.save(unfinished, format="PNG", compress_level=1)
    unfinished.rename(file)
    return image
