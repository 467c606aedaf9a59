"""`darkroom reproduce`: draws an image again from its own metadata, and says whether it came out the same."""

import base64
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.protocol.python_command import python_command
from server.errors import StartError
from server.secret_files import read_secret

if TYPE_CHECKING:
    import httpx

    from server.settings import Settings

READER = "pipelines.images.file_comparison"  # a process of its own: this one reads no images
KEY_VARIABLE = "DARKROOM_API_KEY"
SENT = (
    "prompt", "model", "size", "seed", "steps", "guidance", "strength", "negative_prompt", "scheduler", "loras",
    "long_prompt", "output_compression", "background", "mask_zoom",
)  # fmt: skip
SENT_TO_ENLARGE = ("prompt", "model", "scale", "seed", "output_compression")
INPUTS = {"made_from", "mask", "controls"}
TOLD = {  # by every answer: nothing that a request asks for
    "checkpoint", "software", "batch", "drawn_by", "adapters", "control_files", "prompt_tokens",
    "negative_prompt_tokens", "reproducible", "cut_from", "drawn_region", "original_prompt", "enhanced_by",
    "enhance_failed",
}  # fmt: skip
CUT_BYTES = 15_000  # fewer than of any text that was cut: a JPEG or WebP has room for 65,000 of all
OWN_NAME = re.compile(r"[a-z_]+")  # of Darkroom's fields; other programs add texts to a PNG
NOT_COMPARED = {"software", "batch", "XML:com.adobe.xmp", "original_prompt", "enhanced_by", "enhance_failed"}


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
    import httpx

    from server.cli.environment import read_settings

    settings = read_settings()
    first = compare_files(file)
    check_fields(first)
    headers = {"Authorization": f"Bearer {key or _own_key(settings)}"}
    client = httpx.Client(base_url=settings.local_url, headers=headers, timeout=None, trust_env=False)  # noqa: S113
    with client, tempfile.TemporaryDirectory(prefix="darkroom-reproduce-") as folder:
        body = request_of(first, _offered_schedulers(client, first["metadata"].get("model")))
        body |= inputs_of(first["metadata"], image or [], mask, control or [])
        route = "/v1/images/upscale" if "scale" in body else "/v1/images/generations"
        data = base64.b64decode(_send(client, "POST", route, body)["data"][0]["b64_json"])
        (again := output or Path(folder) / "again").write_bytes(data)
        lines, same = outcome(compare_files(file, again))
    for line in lines:
        typer.echo(line)
    raise typer.Exit(0 if same else 1)


def compare_files(*files: Path) -> dict[str, Any]:
    """Return what a file says of its image, and in what another one differs. Raises StartError."""
    done = subprocess.run(python_command(READER, *files), capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartError([f"{files[0]} can't be read.", *done.stderr.strip().splitlines()][-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_fields(found: Mapping[str, Any]) -> None:
    """Check that a request can ask for all that an image was drawn with. Raises StartError with the field's name."""
    metadata = found["metadata"]
    carried = {*SENT, *SENT_TO_ENLARGE, *INPUTS, *TOLD}
    if unknown := sorted(name for name in metadata.keys() - carried if OWN_NAME.fullmatch(name)):
        raise StartError(f"It can't be drawn again: its metadata have '{unknown[0]}', for which no request asks.")
    texts = {name: str(metadata.get(name, "")) for name in ("prompt", "negative_prompt")}
    cut = [name for name, text in texts.items() if text.endswith("…") and len(text.encode()) > CUT_BYTES]
    if cut and found["format"] != "png":
        raise StartError(f"It can't be drawn again: its '{cut[0]}' was cut to fit into its file. A PNG keeps all.")


def request_of(found: Mapping[str, Any], schedulers: Sequence[str]) -> dict[str, Any]:
    """Return the body that draws an image again, without the images that it was made from. `schedulers` are those that
    a request may name: else it is the model's own."""
    enlarges = "scale" in found["metadata"]
    sent = SENT_TO_ENLARGE if enlarges else SENT
    body = {name: value for name in sent if (value := found["metadata"].get(name)) not in (None, "", {})}
    if _is_older(found["metadata"]) and "seed" in body:
        body["seed"] %= 2**32  # its version drew what the lowest bits of a seed draw
    if body.get("scheduler") not in schedulers:
        body.pop("scheduler", None)
    if found["format"] == "png":
        body.pop("output_compression", None)
    drawn = {} if enlarges else {"n": 1, "batch": "exact", "enhance": False}
    return {**body, **drawn, "output_format": found["format"], "response_format": "b64_json"}


def inputs_of(
    metadata: Mapping[str, Any], images: Sequence[Path], mask: Path | None, controls: Sequence[str]
) -> dict[str, Any]:
    """Return the fields with the images that it was made from. Raises StartError for one that is not given."""
    enlarges = "scale" in metadata
    needed = 1 if enlarges else len(metadata.get("made_from") or [])
    if len(images) != needed:
        raise StartError(f"It was made from {needed} image(s): give each with --image, in the order of the call.")
    if bool(metadata.get("mask")) != (mask is not None):
        raise StartError("It was made with a mask: give it with --mask." if mask is None else "It had no mask.")
    given = dict(each.split("=", 1) for each in controls if "=" in each)
    if missing := (metadata.get("controls") or {}).keys() ^ given.keys():
        raise StartError(f"Give the image of each control that it was drawn with: --control {min(missing)}=FILE")
    fields: dict[str, Any] = {}
    if images:
        uris = [_as_uri(path) for path in images]
        fields["image"] = uris[0] if enlarges else uris
    if mask is not None:
        fields["mask"] = _as_uri(mask)
    if given:
        strengths = metadata["controls"]
        fields["controls"] = {
            name: {"image": _as_uri(Path(path)), "strength": strengths[name]} for name, path in given.items()
        }
    return fields


def _as_uri(path: Path) -> str:
    from server.backends.decoding.data_uri import encode_data_uri

    try:
        return encode_data_uri(path.read_bytes())
    except OSError as error:
        raise StartError(f"{path} can't be read: {error.strerror}.") from error


def outcome(found: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return lines that say whether an image and the one that was drawn again have the same pixels, and what differs;
    and whether they have."""
    first, pixels = found["metadata"], found["pixels"]
    changes = [f"{name}: {old} -> {new}" for name, old, new in differences(first, found["other"])]
    if pixels is None:
        return ["Not the same: it has another size.", *changes], False
    if not pixels["differing"]:
        return [f"The same, bit for bit: all {pixels['of']:,} pixels.", *changes], True
    lines = [
        f"Not the same: {pixels['differing']:,} of {pixels['of']:,} pixels differ, by {pixels['most']} of 255 at most."
    ]
    if first.get("batch") == "merged":
        lines.append(
            "It had shared forward passes with other images, which may change low bits. Images that a request asks for "
            "with 'batch': 'exact' come out the same each time."
        )
    if False in (first.get("reproducible"), found["other"].get("reproducible")):
        lines.append("This checkpoint draws other noise each time, whatever the seed.")
    if _is_older(first):
        lines.append("In its version, the noise of some schedulers was not of the image's seed.")
    if "drawn_by" not in first:
        lines.append("Its metadata do not say what drew it: it is of an earlier version, or of another server.")
    return [*lines, *changes], False


def _is_older(metadata: Mapping[str, Any]) -> bool:
    """Return whether an image is of a version that took noise for some steps from a generator that all images shared,
    and seeds by their lowest 32 bits: it does not say how much of a seed counts."""
    drawn_by = metadata.get("drawn_by")
    return isinstance(drawn_by, dict) and "darkroom" in drawn_by and "seeds" not in drawn_by


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what two images' metadata say differently: the name, the old and the new value."""
    for name in sorted({**first, **second}.keys() - NOT_COMPARED):
        old, new = first.get(name), second.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from ((f"{name}.{part}", *pair) for part, *pair in differences(old, new))
        elif str(old) != str(new):
            yield name, "nothing" if old is None else old, "nothing" if new is None else new


def _own_key(settings: "Settings") -> str:
    try:
        return read_secret(settings.home / "dev-key")
    except OSError as error:
        raise StartError(f"Give the key that pays with --key, or in {KEY_VARIABLE}.") from error


def _offered_schedulers(client: "httpx.Client", model: str | None) -> list[str]:
    cards = _send(client, "GET", "/v1/models", None)["data"]
    return next((card.get("schedulers", []) for card in cards if card["id"] == model), [])


def _send(client: "httpx.Client", method: str, route: str, body: dict[str, Any] | None) -> Any:
    """Return the body of an answer. Raises StartError with the server's message."""
    import httpx

    from server.cli.admin_client import check_response

    try:
        response = client.request(method, route, json=body)
    except httpx.HTTPError as error:
        raise StartError(f"No server answers at {client.base_url}: {error}.") from error
    return check_response(response).json()
