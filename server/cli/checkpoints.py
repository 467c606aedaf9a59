"""`darkroom checkpoints`: the checkpoints on the disk, their capabilities, and their catalog files."""

import contextlib
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from server.cli.environment import read_settings
from server.cli.printing import CsvFlag, JsonFlag
from server.errors import ApiError, StartError

if TYPE_CHECKING:
    from server.flows.operators.checkpoints import CheckpointManager

app = typer.Typer(no_args_is_help=True, help="Inspect, add, list, verify, compare and remove image checkpoints.")

CheckpointPath = Annotated[str, typer.Argument(help="A path, absolute or relative to DARKROOM_WEIGHTS.")]
BasePath = Annotated[
    str | None, typer.Option(help="The folder with the other components, of a file that has the denoiser alone.")
]

Loras = Annotated[
    list[str] | None, typer.Option("--lora", help="An adapter for every image, such as one of few steps; repeatable.")
]
ConfigPath = Annotated[
    str | None, typer.Option(help="The folder with the configs, of a file that has the whole checkpoint.")
]


@app.command()
def inspect(checkpoint: CheckpointPath, base: BasePath = None, config: ConfigPath = None, loras: Loras = None) -> None:
    """Say what a folder, a hub cache folder, a .safetensors or a .gguf file is and can do. Reads no weights."""
    from server.cli.checkpoint_tables import show_report
    from server.schemas.checkpoints import report_of

    manager = _manager()
    with _readable_errors():
        show_report(report_of(*manager.inspect(checkpoint, base, config, loras or ())))


@app.command()
def add(
    checkpoint: CheckpointPath,
    name: Annotated[str | None, typer.Option(help="Name of its models; from its path unless given.")] = None,
    family: Annotated[str | None, typer.Option(help="A family of catalog.toml, which says who may call it.")] = None,
    tiers: Annotated[str, typer.Option(help="Which of 1K, 2K and 4K, separated by commas.")] = "1K",
    price: Annotated[str | None, typer.Option(help="CNY a call; what the family's models cost unless given.")] = None,
    base: BasePath = None,
    config: ConfigPath = None,
    loras: Loras = None,
    runtime: Annotated[
        Literal["auto", "plain"],
        typer.Option(help="How it is loaded: in the fastest form that fits the memory, or whole on the device."),
    ] = "auto",
) -> None:
    """Write its catalog file, with values found in the checkpoint, and the SHA-256 sums of its files."""
    from typing import cast, get_args

    from pipelines.checkpoints.folder.libraries import how_to_install
    from server.catalog.sizes import Tier

    listed = [tier.strip().upper() for tier in tiers.split(",")]
    if unknown := [tier for tier in listed if tier not in get_args(Tier)]:
        raise StartError(f"There is no tier '{unknown[0]}'. Tiers: {', '.join(get_args(Tier))}.")
    chosen = cast(list[Tier], listed)
    manager = _manager()
    with _readable_errors():
        added = manager.add(
            checkpoint, name=name, family=family, tiers=chosen, price=price, base=base, config=config,
            loras=loras or (), runtime=runtime,
        )  # fmt: skip
    typer.echo(added.text)
    typer.echo(f"Wrote {added.file}.")
    if added.loading is not None:
        hint = "; write the quantize and offload that go with adapters into [runtime]" if loras else ""
        typer.echo(f'runtime = "auto" is {added.loading}{hint}.')
    if added.needs:
        command = how_to_install(added.needs)
        typer.echo(f"It needs {' and '.join(added.needs)}, which is not installed: {command}", err=True)
    if added.manifest is None:
        typer.echo("Its SHA-256 sums could not be written beside it, so it can't be verified later.", err=True)
    typer.echo(f"`darkroom reload` serves {', '.join(added.models)}.")


@app.command("list")
def list_all(as_json: JsonFlag = False, as_csv: CsvFlag = False) -> None:
    """List the checkpoints with their state, size and last use."""
    from server.cli.checkpoint_tables import checkpoint_cards, checkpoints_table
    from server.cli.printing import show, show_rows
    from server.schemas.checkpoints import CheckpointCard

    cards = checkpoint_cards(read_settings())
    if not (as_json or as_csv):
        show(checkpoints_table(cards))
        return
    rows = [card.model_dump() for card in cards]
    show_rows("", dict.fromkeys(CheckpointCard.model_fields, ""), rows, as_json=as_json, as_csv=as_csv)


@app.command()
def adapters() -> None:
    """List the LoRA adapters that requests may name, with rank, trigger words and fit."""
    from server.cli.checkpoint_tables import adapters_table
    from server.cli.printing import show

    show(adapters_table(read_settings()))


@app.command()
def verify(checkpoint: CheckpointPath) -> None:
    """Compare every file of a checkpoint with the sums that `add` wrote, such as after it was carried."""
    manager = _manager()
    with _readable_errors():
        checked = manager.verify(checkpoint)
    for each in checked:
        if each.state != "unchanged":
            typer.echo(f"{each.state}: {each.file}", err=True)
    if different := sum(each.state != "unchanged" for each in checked):
        raise StartError(f"{different} of {len(checked)} files are not as they were.")
    typer.echo(f"All {len(checked)} files are as they were.")


@app.command()
def remove(
    model: Annotated[str, typer.Argument(help="Name of a model. All models of its catalog file go.")],
    files: Annotated[bool, typer.Option("--files", help="Delete the checkpoint's files too.")] = False,
) -> None:
    """Delete a model's catalog file. `darkroom reload` then stops serving its models."""
    manager = _manager()
    with _readable_errors():
        for path in manager.remove(model, delete_files=files):
            typer.echo(f"Deleted {path}.")
    typer.echo("A running server goes on with its models until `darkroom reload`.")


@app.command("proof")
def comparison_grid(
    candidates: Annotated[
        list[str] | None, typer.Argument(help="Names of models, or paths of checkpoints: the columns of the sheet.")
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="A prompt, or a text file with one on each line.")
    ] = "a red house on green grass under a blue sky",
    seeds: Annotated[int, typer.Option(min=1, max=24, help="How many seeds: 1, 2, ...")] = 1,
    axis: Annotated[
        str | None, typer.Option(help="Values to draw side by side, such as steps=10,20,30 or guidance=2,4.")
    ] = None,
    size: Annotated[str, typer.Option(help="Pixels of each image before it is scaled down.")] = "1024x1024",
    again: Annotated[Path | None, typer.Option("--from", help="A sheet to draw again, from its metadata.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the sheet.")] = Path("proof.png"),
) -> None:
    """Draw a contact sheet with the running server, uncharged. Its metadata say how to draw it again."""
    from server.cli.admin_client import request

    if again is not None:
        body = read_recipe(again)
    elif candidates:
        body = {
            "candidates": [{"name": name} for name in candidates],
            "prompts": _prompts(prompts),
            "seeds": list(range(1, seeds + 1)),
            "axis": _axis(axis) if axis else {},
            "size": size,
        }
    else:
        raise StartError("Name the models or checkpoints to compare, or a sheet with --from.")
    output.write_bytes(request(read_settings(), "POST", "/admin/checkpoints/proof", body).content)
    typer.echo(f"Wrote {output}. `darkroom checkpoints proof --from {output}` draws it again.")


def read_recipe(sheet: Path) -> dict[str, Any]:
    """Read the request in the metadata of a sheet. Raises StartError."""
    try:
        for keyword, text in _texts(sheet.read_bytes()):
            if keyword == "proof":
                recipe: dict[str, Any] = json.loads(text)
                return recipe
    except (OSError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise StartError(f"{sheet} can't be read: {error}") from error
    raise StartError(f"{sheet} is no sheet of `darkroom checkpoints proof`.")


def _texts(png: bytes) -> Iterator[tuple[str, str]]:
    """Yield the keywords and texts of the iTXt chunks of a PNG: keyword, compression flag and method, language,
    translated keyword, UTF-8 text."""
    place = 8
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        if kind == b"iTXt":
            keyword, _, rest = png[place + 8 : place + 8 + length].partition(b"\0")
            text = rest[2:].split(b"\0", 2)[2]
            yield keyword.decode("latin-1"), (zlib.decompress(text) if rest[:1] == b"\1" else text).decode()
        place += 12 + length


def _prompts(text: str) -> list[str]:
    try:
        lines = Path(text).read_text().splitlines() if Path(text).is_file() else [text]
    except OSError:  # a prompt may be too long for a path
        lines = [text]
    except ValueError as error:
        raise StartError(f"{text} is no text in UTF-8.") from error
    return [line.strip() for line in lines if line.strip()]


def _axis(text: str) -> dict[str, list[Any]]:
    """Parse an axis: "steps=10,20" -> {"steps": [10, 20]}. The server checks names and values. Raises StartError."""
    name, _, values = text.partition("=")
    listed = [_number(value.strip()) for value in values.split(",") if value.strip()]
    if not listed:
        raise StartError(f"--axis takes a name and values, such as steps=10,20,30, but got {text!r}.")
    return {name.strip(): listed}


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _manager() -> "CheckpointManager":
    from pipelines.checkpoints.folder.sums import Digests
    from server.flows.operators.checkpoints import CheckpointManager

    settings = read_settings()
    return CheckpointManager(settings.model_configs, settings.weights, Digests(settings.weight_digests))


@contextlib.contextmanager
def _readable_errors() -> Iterator[None]:
    """Show errors of the manager as one line of the command."""
    try:
        yield
    except ApiError as error:
        raise StartError(error.message) from error
