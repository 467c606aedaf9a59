"""What an image's file says of it, and in what the pixels of two files differ: for `darkroom reproduce`, whose own
process reads no images.

    python -m pipelines.images.file_comparison FILE [OTHER]

prints one JSON object: `metadata`, `format` and `size` of the first file, and `pixels` with two.
"""

import json
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image, ImageChops, UnidentifiedImageError

SHAPES = {"prompt": str, "seed": int, "controls": dict, "loras": dict, "made_from": list}
TEXTS = frozenset({"prompt", "negative_prompt", "model", "checkpoint", "size", "scheduler", "software", "long_prompt"})


class Unreadable(Exception):
    """A file that is no image, or none of Darkroom's."""


def read_image(path: Path) -> Image.Image:
    """Read an image whole. Raises Unreadable."""
    try:
        image = Image.open(path)
        image.load()
    except (UnidentifiedImageError, OSError) as error:
        raise Unreadable(f"{path} is no image that can be read.") from error
    return image


def metadata_of(image: Image.Image, path: Path) -> dict[str, Any]:
    """Return the fields that Darkroom has written into a file. Raises Unreadable if there are none."""
    if image.format == "PNG":
        metadata = {name: _value(name, text) for name, text in getattr(image, "text", {}).items()}
    else:
        metadata = _read_exif_json(image)
        quality = metadata.get("output_compression")
        if isinstance(quality, str) and quality.isdecimal():  # as earlier versions wrote it
            metadata["output_compression"] = int(quality)
    shaped = all(isinstance(metadata[name], kind) for name, kind in SHAPES.items() if metadata.get(name) is not None)
    if not shaped or "seed" not in metadata or not {"prompt", "scale"} & metadata.keys():
        raise Unreadable(f"{path} has no metadata of Darkroom: it was drawn elsewhere, or a program took them out.")
    return metadata


def _value(name: str, text: str) -> Any:
    """Return the value that a text of a PNG stands for: all but the names and prompts are JSON."""
    try:
        return text if name in TEXTS else json.loads(text)
    except ValueError:
        return text


def _read_exif_json(image: Image.Image) -> dict[str, Any]:
    """Return the JSON in the EXIF description of a JPEG or WebP; nothing if it is none. It is UTF-8, which Pillow reads
    as Latin-1."""
    try:
        found = json.loads(str(image.getexif().get(ExifTags.Base.ImageDescription, "")).encode("latin-1"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def difference(first: Image.Image, second: Image.Image) -> dict[str, int] | None:
    """Return how many pixels differ, and by how much of 255 at most; None for another size."""
    if first.size != second.size:
        return None
    mode = "RGBA" if "A" in first.mode + second.mode else "RGB"
    bands = ImageChops.difference(first.convert(mode), second.convert(mode)).split()
    counted = reduce(ImageChops.lighter, bands).histogram()
    differing = sum(counted[1:])
    return {
        "differing": differing,
        "most": max((value for value, number in enumerate(counted) if number), default=0),
        "of": first.width * first.height,
    }


def main(paths: list[Path]) -> dict[str, Any]:
    """Read one file, or compare two. Raises Unreadable."""
    images = [read_image(path) for path in paths]
    described = [metadata_of(image, path) for image, path in zip(images, paths, strict=True)]
    found: dict[str, Any] = {
        "metadata": described[0], "format": (images[0].format or "").lower(), "size": images[0].size,
    }  # fmt: skip
    return found if len(images) == 1 else {**found, "pixels": difference(*images), "other": described[1]}


if __name__ == "__main__":
    try:
        print(json.dumps(main([Path(argument) for argument in sys.argv[1:]])))
    except Unreadable as error:
        sys.exit(str(error))
