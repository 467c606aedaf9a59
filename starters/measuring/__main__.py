"""`python -m starters.measuring WEIGHTS MODEL_CONFIGS [--count N] [--sheet FILE] [--cards]`: what is right.

Each image starter of the catalog by the first of its 1K models; then starter-chat if it is there.
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipelines.catalog.images import ImageModel, load_catalog
from pipelines.device.offline import quiet_libraries
from starters.build import NAMES
from starters.measuring.obedience import (
    Ask,
    adherence,
    edit_adherence,
    held_out_captions,
    held_out_edits,
)
from starters.measuring.painting import Painter, codec_psnr
from starters.measuring.report import Measured, table, write_into_card, write_sheet
from starters.world.contact_sheet import CELL_PX

CHAT: Final = "starter-chat"
SHOWN: Final = 12  # pictures of each kind on the sheet
CODED: Final = 24  # scenes for the PSNR, at most


@dataclass(slots=True)
class Gallery:
    """The first pictures of every starter and kind, for the sheet."""

    pictures: list[tuple[Image.Image, str]] = field(default_factory=list)
    _taken: Counter[tuple[str, bool]] = field(default_factory=Counter)

    def add(self, name: str, ask: Ask, picture: Image.Image) -> None:
        """Show it, unless enough of its kind are there."""
        kind = name, bool(ask.references)
        if self._taken[kind] < SHOWN:
            self._taken[kind] += 1
            small = picture.copy()
            small.thumbnail((CELL_PX, CELL_PX))
            self.pictures.append((small, ask.prompt))


def measure_image_starter(model: ImageModel, count: int, gallery: Gallery, progress: Progress) -> Measured:
    """The figures of a model's checkpoint. Raises CheckpointError."""
    painter, name = Painter.of(model), model.checkpoint.name
    task = progress.add_task(name, total=count * (1 + painter.edits))

    def show(ask: Ask, picture: Image.Image) -> None:
        progress.advance(task)
        gallery.add(name, ask, picture)

    shares = dict(adherence(painter.draw, held_out_captions(count), show))
    if painter.edits:
        shares |= edit_adherence(painter.draw, held_out_edits(count), show)
    return Measured(shares, codec_psnr(painter, min(count, CODED)))


def starter_models(configs: Path, weights: Path) -> list[ImageModel]:
    """One 1K model for each starter that is there. Raises CatalogError."""
    catalog = load_catalog(configs, weights)
    found: dict[str, ImageModel] = {}
    for model in catalog.models.values():
        if model.tier == "1K" and model.checkpoint.name in NAMES and model.checkpoint.path.is_dir():
            found.setdefault(model.checkpoint.name, model)
    return list(found.values())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("configs", type=Path)
    parser.add_argument("--count", type=int, default=200, help="captions, and as many edits")
    parser.add_argument("--sheet", type=Path, help="where to write some of the pictures, as PNG")
    parser.add_argument("--cards", action="store_true", help="write the figures into the model cards too")
    arguments = parser.parse_args()
    quiet_libraries()
    gallery = Gallery()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        models = starter_models(arguments.configs, arguments.weights)
        measured = {
            model.checkpoint.name: measure_image_starter(model, arguments.count, gallery, progress) for model in models
        }
    Console().print(table(measured))
    if arguments.cards:
        for model in models:
            write_into_card(model.checkpoint.path / "README.md", measured[model.checkpoint.name])
    if arguments.sheet is not None:
        write_sheet(gallery.pictures, arguments.sheet)
        print(f"Pictures: {arguments.sheet}", file=sys.stderr)
    if (arguments.weights / CHAT).is_dir():
        from starters.chat import measure as chat

        Console().print(chat.table(chat.measure(arguments.weights / CHAT, count=arguments.count)))


if __name__ == "__main__":
    main()
