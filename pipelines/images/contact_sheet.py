"""`python -m pipelines.images.contact_sheet FOLDER`: the images of a comparison grid on one sheet, a process of its
own.

FOLDER has `sheet.json` (columns, rows and the recipe) and one file a cell, `ROW-COLUMN.png`. The sheet is written there
as `sheet.png`, with the recipe in its metadata, from which the grid can be repeated.
"""

import json
import sys
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from pipelines.protocol.provenance import XMP_KEYWORD, xmp_packet

KEYWORD = "proof"  # of the recipe in the PNG's metadata
MARGIN_PX = 8
TEXT_PX = 14
LINE_PX = 18


def make_sheet(folder: Path) -> None:
    """Read the cells and write the sheet."""
    described: dict[str, Any] = json.loads((folder / "sheet.json").read_text())
    columns, rows, side = described["columns"], described["rows"], described["cell_px"]
    font = ImageFont.load_default(TEXT_PX)
    top = MARGIN_PX + LINE_PX * max(column.count("\n") + 1 for column in columns)
    width = MARGIN_PX + len(columns) * (side + MARGIN_PX)
    height = top + len(rows) * (side + LINE_PX + MARGIN_PX)
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for number, text in enumerate(columns):
        draw.multiline_text((MARGIN_PX + number * (side + MARGIN_PX), 4), text, "black", font)
    for number, text in enumerate(rows):
        y = top + number * (side + LINE_PX + MARGIN_PX)
        draw.text((MARGIN_PX, y), _shortened(text, font, width - 2 * MARGIN_PX), "black", font)
        for column in range(len(columns)):
            with Image.open(folder / f"{number}-{column}.png") as cell:
                cell.thumbnail((side, side))
                sheet.paste(cell, (MARGIN_PX + column * (side + MARGIN_PX), y + LINE_PX))
    info = PngInfo()
    info.add_itxt(KEYWORD, json.dumps(described["recipe"]))
    info.add_itxt(XMP_KEYWORD, xmp_packet("trainedAlgorithmicMedia"))
    sheet.save(folder / "sheet.png", pnginfo=info)


def _shortened(text: str, font: Any, width_px: int) -> str:
    shown = text
    while text and font.getlength(shown) > width_px:
        text = text[:-1]
        shown = f"{text}…"
    return shown


if __name__ == "__main__":
    make_sheet(Path(sys.argv[1]))
