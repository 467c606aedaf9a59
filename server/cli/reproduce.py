"""`darkroom reproduce`: draws an image again from its own metadata, and says whether it came out the same."""

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import typer

from server.backends.decoding.data_uri import encode_data_uri
from server.errors import StartError

if TYPE_CHECKING:
    from PIL.Image import Image

    from server.settings import Settings

KEY_VARIABLE = "DARKROOM_API_KEY"
SENT = (
    "prompt", "model", "size", "seed", "steps", "guidance", "strength", "negative_prompt", "scheduler", "loras",
    "long_prompt", "output_compression",
)  # fmt: skip
NUMBERS = {"output_compression", "seed", "steps", "guidance", "strength"}
NOT_COMPARED = {"software", "batch"}
FORMATS = {"PNG": "png", "JPEG": "jpeg", "WEBP": "webp"}


@dataclass(frozen=True, slots=True)
class Drawn:
    """An image file: its pixels, and what its metadata say."""

    image: "Image"
    metadata: Mapping[str, Any]


def reproduce(
    file: Annotated[Path, typer.Argument(help="An image that Darkroom has drawn.", exists=True, dir_okay=False)],
    image: Annotated[
        list[Path] | None, typer.Option(help="An image that it was made from; repeat it in the order of the call.")
    ] = None,
    mask: Annotated[Path | None, typer.Option(help="The mask that it was made with.")] = None,
    control: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE: the image of a control; repeat it for others.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(envvar=KEY_VARIABLE, help="The key that pays; by default the one in the home.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the new image.")] = None,
) -> None:
    """Draw an image again from its own metadata, and say if it is the same bit for bit, or what differs. It is charged
    as any call."""
    from server.cli.environment import read_settings

    settings = read_settings()
    first = read_drawn(file.read_bytes(), str(file))
    headers = {"Authorization": f"Bearer {key or _own_key(settings)}"}
    client = httpx.Client(base_url=settings.local_url, headers=headers, timeout=None, trust_env=False)  # noqa: S113
    with client:
        body = request_of(first, _offered_schedulers(client, first.metadata.get("model")))
        body |= _inputs(first.metadata, image or [], mask, control or [])
        data = base64.b64decode(_send(client, "POST", "/v1/images/generations", body)["data"][0]["b64_json"])
    if output is not None:
        output.write_bytes(data)
    second = read_drawn(data, "The new image")
    told, same = compare(first, second)
    for line in told:
        typer.echo(line)
    raise typer.Exit(0 if same else 1)


def read_drawn(data: bytes, name: str) -> Drawn:
    """Decode an image of Darkroom's with its metadata. Raises StartError for any other file."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data))
        image.load()
    except (UnidentifiedImageError, OSError) as error:
        raise StartError(f"{name} is no image that can be read.") from error
    if image.format == "PNG":
        metadata = {key: _value(key, text) for key, text in getattr(image, "text", {}).items()}
    else:
        metadata = _described(image)
    if "prompt" not in metadata or "seed" not in metadata:
        raise StartError(f"{name} has no metadata of Darkroom: it was drawn elsewhere, or a program took them out.")
    return Drawn(image, {**metadata, "output_format": FORMATS.get(image.format or "", "png")})


def _value(key: str, text: str) -> Any:
    if key in {"prompt", "negative_prompt", "model", "checkpoint", "size", "scheduler", "software", "long_prompt"}:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _described(image: "Image") -> dict[str, Any]:
    from PIL import ExifTags

    try:
        found = json.loads(image.getexif().get(ExifTags.Base.ImageDescription, ""))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def request_of(drawn: Drawn, schedulers: Sequence[str]) -> dict[str, Any]:
    """Return the body that draws an image again, without the images that it was made from. `schedulers` are those that
    a request may name: else it is the model's own."""
    body = {name: drawn.metadata[name] for name in SENT if drawn.metadata.get(name) not in (None, "", {})}
    body = {name: json.loads(str(value)) if name in NUMBERS else value for name, value in body.items()}
    if body.get("scheduler") not in schedulers:
        body.pop("scheduler", None)
    output_format = drawn.metadata["output_format"]
    if output_format == "png":
        body.pop("output_compression", None)
    return {**body, "output_format": output_format, "n": 1, "batch": "exact", "response_format": "b64_json"}


def _inputs(
    metadata: Mapping[str, Any], images: Sequence[Path], mask: Path | None, controls: Sequence[str]
) -> dict[str, Any]:
    """Return the fields with the images that it was made from. Raises StartError for one that is not given."""
    needed = len(metadata.get("made_from") or [])
    if len(images) != needed:
        raise StartError(f"It was made from {needed} image(s): give each with --image, in the order of the call.")
    if bool(metadata.get("mask")) != (mask is not None):
        raise StartError("It was made with a mask: give it with --mask." if mask is None else "It had no mask.")
    given = dict(each.split("=", 1) for each in controls if "=" in each)
    if missing := (metadata.get("controls") or {}).keys() ^ given.keys():
        raise StartError(f"Give the image of each control that it was drawn with: --control {min(missing)}=FILE")
    fields: dict[str, Any] = {}
    if images:
        fields["image"] = [encode_data_uri(path.read_bytes()) for path in images]
    if mask is not None:
        fields["mask"] = encode_data_uri(mask.read_bytes())
    if given:
        fields["controls"] = {
            name: {"image": encode_data_uri(Path(path).read_bytes()), "strength": metadata["controls"][name]}
            for name, path in given.items()
        }
    return fields


def compare(first: Drawn, second: Drawn) -> tuple[list[str], bool]:
    """Compare an image with the one that was drawn again: what to tell, and whether the pixels are the same."""
    told = [f"{name}: {old} -> {new}" for name, old, new in differences(first.metadata, second.metadata)]
    if first.image.size != second.image.size:
        sizes = ["x".join(map(str, each.image.size)) for each in (first, second)]
        return [f"Not the same: {sizes[0]}, and now {sizes[1]}.", *told], False
    differing, most = _pixels(first.image, second.image)
    total = first.image.width * first.image.height
    if not differing:
        return [f"The same, bit for bit: all {total:,} pixels.", *told], True
    lines = [f"Not the same: {differing:,} of {total:,} pixels differ, by {most} of 255 at most."]
    if first.metadata.get("batch") == "merged":
        lines.append(
            "It had shared forward passes with other images, which may change low bits. Images that a request asks for "
            "with 'batch': 'exact' come out the same each time."
        )
    if "drawn_by" not in first.metadata:
        lines.append("Its metadata do not say what drew it: it is of an earlier version, or of another server.")
    return [*lines, *told], False


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what two images' metadata say differently: the name, the old and the new value."""
    for name in sorted({**first, **second}.keys() - NOT_COMPARED):
        old, new = first.get(name), second.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from ((f"{name}.{part}", *pair) for part, *pair in differences(old, new))
        elif str(old) != str(new) and name != "XML:com.adobe.xmp":
            yield name, "nothing" if old is None else old, "nothing" if new is None else new


def _pixels(first: "Image", second: "Image") -> tuple[int, int]:
    """Return how many pixels differ, and by how much at most."""
    from functools import reduce

    from PIL import ImageChops

    mode = "RGBA" if "A" in first.mode + second.mode else "RGB"
    bands = ImageChops.difference(first.convert(mode), second.convert(mode)).split()
    counted = reduce(ImageChops.lighter, bands).histogram()
    return sum(counted[1:]), max(value for value, number in enumerate(counted) if number)


def _own_key(settings: "Settings") -> str:
    try:
        return (settings.home / "dev-key").read_text().strip()
    except OSError as error:
        raise StartError(f"Give the key that pays with --key, or in {KEY_VARIABLE}.") from error


def _offered_schedulers(client: httpx.Client, model: str | None) -> list[str]:
    cards = _send(client, "GET", "/v1/models", None)["data"]
    return next((card.get("schedulers", []) for card in cards if card["id"] == model), [])


def _send(client: httpx.Client, method: str, route: str, body: dict[str, Any] | None) -> Any:
    """Return the body of an answer. Raises StartError with the server's message."""
    try:
        response = client.request(method, route, json=body)
    except httpx.HTTPError as error:
        raise StartError(f"No server answers at {client.base_url}: {error}.") from error
    if response.status_code != 200:
        raise StartError(response.json()["error"]["message"])
    return response.json()
