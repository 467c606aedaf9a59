"""The measured figures as a table and in the model cards, and the images as a contact sheet."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image
from rich.table import Table

from starters.measuring.adherence import Shares
from starters.world.contact_sheet import contact_sheet

QUALITY: Final = re.compile(r"(?m)^\| quality \|.*$")  # this row of the model card; training/export.py writes it


@dataclass(frozen=True, slots=True)
class Measured:
    """One starter's figures."""

    shares: Shares
    psnr_db: float


def table(measured: Mapping[str, Measured]) -> Table:
    rows = Table("Starter", "What", "Right", "Of", title="Held-out captions and edits")
    for name, figures in measured.items():
        for what, share in figures.shares.items():
            rows.add_row(name, what, f"{share.value:.1%}", str(share.of))
        rows.add_row(name, "autoencoder, rendered scenes", f"{figures.psnr_db:.1f} dB", "", end_section=True)
    return rows


def write_into_card(card: Path, measured: Measured) -> None:
    """Replace the card's quality row. A card without one is left alone."""
    shares = ", ".join(f"{what} {share.right} of {share.of}" for what, share in measured.shares.items())
    row = f"| quality | held-out captions and edits: {shares}; autoencoder {measured.psnr_db:.1f} dB |"
    card.write_text(QUALITY.sub(lambda _: row, card.read_text()))


def write_sheet(images: Sequence[tuple[Image.Image, str]], file: Path) -> None:
    """Each image with its prompt below it."""
    contact_sheet(images, columns=6).save(file)
