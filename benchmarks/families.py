"""`make families`: every family of tiny checkpoints through a real server, over HTTP. Writes the table of
docs/reference/families.md from what was seen, and ends with an error if anything was spoiled, failed or wrongly
refused.

    python -m benchmarks.families [NAME ...] [--images FOLDER]

With names, only those are driven, and only their rows are written. `--images` keeps what was drawn, to look at.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded; the server has the other core

from pipelines.catalog.inspection import libraries
from tests.support.family_drive import Driven, drive
from tests.support.harness import REPOSITORY, Server, assert_clean
from tests.support.tiny_families import FAMILIES, make_family
from tests.support.tiny_server import tiny_server

PAGE = REPOSITORY / "docs" / "reference" / "families.md"
BEGIN, END = "<!-- make families writes this table -->\n", "<!-- end of it -->\n"
COLUMNS = {  # of the table -> of what was seen
    "from text": "from text",
    "references": "references",
    "mask": "mask",
    "2K and 4K": "2K",
    "negative prompt": "negative_prompt",
    "guidance": "guidance",
    "any steps": "steps",
    "n = 2": "n = 2",
    "previews": "previews",
    "needs": "needs",
    "warmup": "warmup",
}


def drive_family(server: Server, name: str) -> Driven:
    """Make the checkpoint, if it is not there, and drive it."""
    folder = server.weights / name
    if not folder.exists():
        make_family(name, folder)
    index = json.loads((folder / "model_index.json").read_text())
    driven = drive(server, name, index["_class_name"])
    driven.cells["needs"] = ", ".join(dict.fromkeys(libraries(folder, folder, index))) or "-"
    driven.cells["warmup"] = f"{driven.reload_s:.0f} s"
    return driven


def row(driven: Driven) -> str:
    """Its line of the table."""
    cells = [driven.name, f"`{driven.class_name}`", *(driven.cells.get(seen, "-") for seen in COLUMNS.values())]
    return f"| {' | '.join(cells)} |\n"


def write_page(found: Sequence[Driven]) -> None:
    """The rows of these families; others stay as they are."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    kept, _, after = rest.partition(END)
    rows = {line.split("|")[1].strip(): f"{line}\n" for line in kept.splitlines()[2:]}
    rows |= {driven.name: row(driven) for driven in found}
    head = ["checkpoint", "class", *COLUMNS]
    table = (
        f"| {' | '.join(head)} |\n|{' --- |' * len(head)}\n{''.join(rows[name] for name in FAMILIES if name in rows)}"
    )
    PAGE.write_text(f"{before}{BEGIN}{table}{END}{after}")


def keep_images(driven: Driven, folder: Path) -> None:
    for what, image in driven.images.items():
        path = folder / driven.name / f"{what.replace(' ', '-').replace(':', 'x')}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype(np.uint8)).save(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*FAMILIES, []])
    parser.add_argument("--images", type=Path)
    options = parser.parse_args()
    found: list[Driven] = []
    with tempfile.TemporaryDirectory() as folder:
        server = tiny_server(Path(folder)).start()
        try:
            for name in options.names or FAMILIES:
                driven = drive_family(server, name)
                found.append(driven)
                print(row(driven).strip(), f"{driven.first_image_s:.1f} s", *driven.faults, sep="\n  ", flush=True)
                if options.images is not None:
                    keep_images(driven, options.images)
            assert_clean(server)
        finally:
            server.stop()
    write_page([driven for driven in found if not driven.faults])
    times = sorted(driven.first_image_s for driven in found)
    median = statistics.median(times)
    print(f"From a folder to its first image: {times[0]:.1f} to {times[-1]:.1f} s, median {median:.1f}")
    if faults := sum(len(driven.faults) for driven in found):
        sys.exit(f"{faults} faults")


if __name__ == "__main__":
    main()
