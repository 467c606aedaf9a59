"""Several references as one image, for pipelines that take fewer than were sent."""

import math
from collections.abc import Sequence

from PIL import Image, ImageOps

SIDE_PX = 1024  # of the sheet; no pipeline reads references much larger


def combine_references(references: Sequence[Image.Image], first: int) -> list[Image.Image]:
    """Return the first `first` references as they are, and one sheet with the others side by side, row by row."""
    alone, others = list(references[:first]), references[first:]
    if len(others) < 2:
        return [*alone, *others]
    columns = math.ceil(math.sqrt(len(others)))
    rows = math.ceil(len(others) / columns)
    side = SIDE_PX // columns
    sheet = Image.new(others[0].mode, (columns * side, rows * side), "white")
    for number, image in enumerate(others):
        row, column = divmod(number, columns)
        cell = ImageOps.contain(image, (side, side), Image.Resampling.LANCZOS)
        left, top = (side - cell.width) // 2, (side - cell.height) // 2
        sheet.paste(cell, (column * side + left, row * side + top))
    return [*alone, sheet]
