"""`python -m starters.world.contact_sheet OUT.png [--seed N] [--edits]`: scenes with captions, or edits."""

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from starters.world.captions import full_caption
from starters.world.edits import sample_chain
from starters.world.render import render
from starters.world.scene import sample_scene

CELL_PX: Final = 320
TEXT_PX: Final = 88
GAP_PX: Final = 10
SHAPES_PX: Final = ((320, 320), (320, 213), (213, 320), (320, 180), (180, 320), (320, 240))
PAPER: Final = (248, 247, 243)


def contact_sheet(images: Sequence[tuple[Image.Image, str]], columns: int) -> Image.Image:
    """The images in rows, each with its text below it."""
    rows = -(-len(images) // columns)
    step_x, step_y = CELL_PX + GAP_PX, CELL_PX + TEXT_PX + GAP_PX
    sheet = Image.new("RGB", (columns * step_x + GAP_PX, rows * step_y + GAP_PX), PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    for i, (image, text) in enumerate(images):
        x, y = GAP_PX + i % columns * step_x, GAP_PX + i // columns * step_y
        fitted = image.copy()
        fitted.thumbnail((CELL_PX, CELL_PX))
        sheet.paste(fitted, (x + (CELL_PX - fitted.width) // 2, y + (CELL_PX - fitted.height) // 2))
        draw.multiline_text((x, y + CELL_PX + 4), textwrap.fill(text, 48), fill=(40, 42, 52), font=font)
    return sheet


def scenes_sheet(seed: int, count: int = 20) -> Image.Image:
    """Random scenes at several shapes."""
    rng = np.random.default_rng(seed)
    scenes = [sample_scene(rng) for _ in range(count)]
    images = [render(scene, *SHAPES_PX[i % len(SHAPES_PX)]) for i, scene in enumerate(scenes)]
    return contact_sheet([(p, full_caption(s, rng).text) for p, s in zip(images, scenes, strict=True)], columns=5)


def edits_sheet(seed: int, chains: int = 5) -> Image.Image:
    """A chain of three edits in each row."""
    rng = np.random.default_rng(seed)
    images: list[tuple[Image.Image, str]] = []
    for _ in range(chains):
        chain = sample_chain(rng, 3)
        images.append((render(chain[0].before, CELL_PX, CELL_PX), full_caption(chain[0].before, rng).text))
        for edit in chain:
            image = render(edit.after, CELL_PX, CELL_PX)
            if edit.reference is not None:  # the second image, in the corner of what was made of it
                image.paste(render(edit.reference, 96, 96), (CELL_PX - 100, 4))
            images.append((image, edit.instruction))
    return contact_sheet(images, columns=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--edits", action="store_true", help="chains of edits instead of single scenes")
    arguments = parser.parse_args()
    sheet = edits_sheet(arguments.seed) if arguments.edits else scenes_sheet(arguments.seed)
    sheet.save(arguments.out)


if __name__ == "__main__":
    main()
