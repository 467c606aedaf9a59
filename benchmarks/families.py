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
from pathlib import Path

import numpy as np
from PIL import Image

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded; the server has the other core

from benchmarks.family_page import FamilyPage
from pipelines.checkpoints.folder.folder import CheckpointFolder
from pipelines.checkpoints.folder.libraries import needed_libraries
from tests.support.family_drive import Driven, drive
from tests.support.harness import REPOSITORY, Server, assert_clean
from tests.support.tiny_families import FAMILIES, make_family
from tests.support.tiny_server import tiny_server

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
PAGE = FamilyPage(REPOSITORY / "docs" / "reference" / "families.md", "make families", COLUMNS, tuple(FAMILIES))


def drive_family(server: Server, name: str) -> Driven:
    """Make the checkpoint, if it is not there, and drive it."""
    folder = server.weights / name
    if not folder.exists():
        make_family(name, folder)
    index = json.loads((folder / "model_index.json").read_text())
    driven = drive(server, name, index["_class_name"])
    driven.cells["needs"] = ", ".join(dict.fromkeys(needed_libraries(folder, CheckpointFolder(folder), index))) or "-"
    driven.cells["warmup"] = f"{driven.reload_s:.0f} s"
    return driven


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
                PAGE.write([driven] if not driven.faults else [])
                print(PAGE.row(driven).strip(), f"{driven.first_image_s:.1f} s", *driven.faults, sep="\n  ", flush=True)
                if options.images is not None:
                    keep_images(driven, options.images)
            assert_clean(server)
        finally:
            server.stop()
    times = sorted(driven.first_image_s for driven in found)
    median = statistics.median(times)
    print(f"From a folder to its first image: {times[0]:.1f} to {times[-1]:.1f} s, median {median:.1f}")
    if faults := sum(len(driven.faults) for driven in found):
        sys.exit(f"{faults} faults")


if __name__ == "__main__":
    main()
