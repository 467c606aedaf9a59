"""Scenes for these tests: random ones, or plain ones that differ in what is tested."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from starters.world.scene import Scene, Thing, sample_scene

# Every ratio that a model offers, at a size that is quick to draw.
SIZES = (
    (256, 256), (384, 256), (256, 384), (344, 256), (256, 344), (320, 256), (256, 320), (456, 256), (256, 456),
    (512, 256), (256, 512), (600, 256), (256, 600), (1024, 256), (256, 1024), (1664, 208), (208, 1664),
)  # fmt: skip
PLAIN = Scene("day", "grass", "none", "none", (Thing("boat", "red", "large", "centre"),), "flat", 7)


def with_thing(**changes: object) -> Scene:
    """The plain scene with another object."""
    return replace(PLAIN, things=(replace(PLAIN.things[0], **changes),))  # type: ignore[arg-type]


def random_scenes(count: int, seed: int) -> Iterator[tuple[Scene, tuple[int, int]]]:
    """Scenes with a size each, through all sizes."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        yield sample_scene(rng), SIZES[i % len(SIZES)]
