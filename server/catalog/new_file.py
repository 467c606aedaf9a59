"""A catalog file for a checkpoint that is added, as text: values that were found in it, and where."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.checkpoints.inspection.suggestion import Noise, Suggestion, Value
from server.catalog.sizes import Tier

Loading = Literal["auto", "plain"]  # by the memory that there is, or whole on the device
AUTO_NOTE = "the fastest form that fits the memory of GPU and host, or a table [runtime] in its place"
LORAS_NOTE = "in place of `auto`, which takes no adapters: quantize and offload stand here, too"
OWN_MAP_NOTE = "how requests name, in `controls`, the map that it draws from with every call: edges, depth, ..."
TIER_WORDS: dict[Tier, str] = {"1K": "", "2K": "hd-count", "4K": "4k-count"}  # the API's naming rule


@dataclass(frozen=True, slots=True)
class NewModel:
    """A served name. The price is in CNY a call."""

    name: str
    tier: Tier
    price: str


def name_for(stem: str, tier: Tier) -> str:
    """Return a model's name that says its tier."""
    return f"{stem}-{TIER_WORDS[tier]}" if TIER_WORDS[tier] else stem


@dataclass(frozen=True, slots=True)
class NewFile:
    """What a new catalog file says of its checkpoint. `notes` are comments at its top."""

    checkpoint: str
    base: str | None
    config: str | None
    family: str
    models: Sequence[NewModel]
    notes: Sequence[str] = ()
    runtime: Loading = "auto"
    loras: Sequence[tuple[str, float]] = ()  # files, and the weights that they are added with


def catalog_text(file: NewFile, suggestion: Suggestion) -> str:
    """Write the file's text, with the values that were found in the checkpoint."""
    draws = suggestion.conditioning != "upscale"
    lines = [
        *(f"# {note[0].upper()}{note[1:]}." for note in file.notes),
        "# Values were found in the checkpoint where comments say so; docs/reference/catalog.md describes the keys.",
        "",
        f"checkpoint   = {json.dumps(file.checkpoint)}",
        *([f"base         = {json.dumps(file.base)}  # has the other components"] if file.base else []),
        *([f"config       = {json.dumps(file.config)}  # has the configs"] if file.config else []),
        f"family       = {json.dumps(file.family)}",
        f"conditioning = {json.dumps(suggestion.conditioning)}",
        *([f"control_map  = {json.dumps(suggestion.control_map)}  # {OWN_MAP_NOTE}"] if suggestion.control_map else []),
        _line("native_area_px", suggestion.native_area_px),
        *([_line("max_area_px", suggestion.max_area_px)] if draws else []),
        _line("steps", suggestion.steps),
        *(
            ['enlarge = "resize"  # its class can\'t redraw a part of an image, so larger ones are only scaled']
            if suggestion.enlarge == "resize"
            else []
        ),
        *([f'runtime = "auto"  # {AUTO_NOTE}'] if draws and file.runtime == "auto" and not file.loras else []),
        *(["", "[sampling]", _line("guidance", suggestion.guidance)] if draws else []),
        *_noise_lines(suggestion.noise),
        *_lora_lines(file.loras),
    ]
    for model in file.models:
        lines += [
            "",
            "[[models]]",
            f"name  = {json.dumps(model.name)}",
            f"tier  = {json.dumps(model.tier)}",
            f'price = "{model.price}"  # CNY per successful call',
        ]
    return "\n".join([*lines, ""])


def _noise_lines(noise: Noise) -> Iterator[str]:
    if noise.scheduler is not None:
        yield f"scheduler = {json.dumps(noise.scheduler)}  # {noise.found}"
    if noise.config:
        listed = ", ".join(f"{key} = {json.dumps(value)}" for key, value in noise.config)
        yield f"scheduler_config = {{ {listed} }}  # {noise.found}"


def _lora_lines(loras: Sequence[tuple[str, float]]) -> Iterator[str]:
    if loras:
        listed = ", ".join(f"{{ path = {json.dumps(path)}, weight = {weight} }}" for path, weight in loras)
        yield from ("", f"[runtime]  # {LORAS_NOTE}", f"loras = [{listed}]")


def _line(key: str, value: Value) -> str:
    return f"{key} = {value.value}  # {value.found}"
