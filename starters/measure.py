"""`python -m starters.measure [--count N] [--sheet FILE] [--cards]`: how often the starters do what they are asked.

Captions, edits and conversations are held out: training never saw them. Each image starter of the catalog is measured
through the first of its 1K models, then starter-chat if its folder exists.
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

from pipelines.device.offline import quiet_libraries
from server.catalog.images import ImageModel, load_catalog
from starters.measuring.adherence import (
    Case,
    adherence,
    edit_adherence,
    held_out_captions,
    held_out_edits,
)
from starters.measuring.generate import Generator, codec_psnr
from starters.measuring.report import Measured, table, write_into_card, write_sheet
from starters.train import CHAT, NAMES
from starters.world.contact_sheet import CELL_PX

SHEET_IMAGES: Final = 12  # images of each kind on the sheet
CODEC_SCENES: Final = 24  # scenes for the PSNR, at most


@dataclass(slots=True)
class Gallery:
    """The first images of every starter and kind, for the contact sheet."""

    images: list[tuple[Image.Image, str]] = field(default_factory=list)
    _counts: Counter[tuple[str, bool]] = field(default_factory=Counter)

    def add(self, name: str, case: Case, image: Image.Image) -> None:
        kind = name, bool(case.references)
        if self._counts[kind] < SHEET_IMAGES:
            self._counts[kind] += 1
            small = image.copy()
            small.thumbnail((CELL_PX, CELL_PX))
            self.images.append((small, case.prompt))


def measure_image_starter(model: ImageModel, count: int, gallery: Gallery, progress: Progress) -> Measured:
    """The figures of a model's checkpoint. Raises CheckpointError."""
    generator, name = Generator.of(model), model.checkpoint.name
    task = progress.add_task(name, total=count * (1 + generator.edits))

    def on_image(case: Case, image: Image.Image) -> None:
        progress.advance(task)
        gallery.add(name, case, image)

    shares = dict(adherence(generator.draw, held_out_captions(count), on_image))
    if generator.edits:
        shares |= edit_adherence(generator.draw, held_out_edits(count), on_image)
    return Measured(shares, codec_psnr(generator, min(count, CODEC_SCENES)))


def starter_models(configs: Path, weights: Path) -> list[ImageModel]:
    """The first 1K model of each starter that is on the disk. Raises CatalogError."""
    catalog = load_catalog(configs, weights)
    by_starter: dict[str, ImageModel] = {}
    for model in catalog.models.values():
        if model.tier == "1K" and model.checkpoint.name in NAMES and model.checkpoint.path.is_dir():
            by_starter.setdefault(model.checkpoint.name, model)
    return list(by_starter.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m starters.measure", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, default=Path("weights"), help="where the checkpoints are (weights)")
    parser.add_argument("--configs", type=Path, default=Path("model_configs"), help="the catalog (model_configs)")
    parser.add_argument("--count", type=int, default=200, help="captions, and as many edits and conversations")
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
        write_sheet(gallery.images, arguments.sheet)
        print(f"Pictures: {arguments.sheet}", file=sys.stderr)
    if (arguments.weights / CHAT).is_dir():
        from starters.chat import measure as chat

        Console().print(chat.table(chat.measure(arguments.weights / CHAT, count=arguments.count)))


if __name__ == "__main__":
    main()
