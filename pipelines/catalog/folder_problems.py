"""Finds the faults of a checkpoint's folder by looking at its files: for inspecting it, and before it is loaded."""

import difflib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.catalog.components import has_weights
from pipelines.catalog.file_kinds import part_by_class

PICKLES = ("*.bin", "*.ckpt", "*.pt", "*.pth", "*.pkl")
HUB_CACHE = "models--"  # how the folder of a repository begins in the cache of huggingface_hub


def other_kind(folder: Path) -> str:
    """Describe a folder without model_index.json, for the operator."""
    index = folder / "model_index.json"
    if index.is_symlink():
        return f"{index}: a link to a file that is missing, so the download or the copy is not whole"
    if folder.name.startswith(HUB_CACHE):
        return f"{folder}: a download without a snapshot, so it is not whole"
    if (kind := part_by_class(_class_of_part(folder))) is not None:
        return f"{folder}: {kind}"
    if '"architectures"' in _text(folder / "config.json"):
        return f"{folder}: a chat model or classifier of transformers: name it in chat.toml or the moderation policy"
    if (folder / "adapter_config.json").is_file():
        return f"{folder}: a LoRA adapter: see `loras` and `lora_folder` in [runtime]"
    inside = sorted(each.parent for each in folder.glob("*/model_index.json"))
    return f"{folder}: no model_index.json{f'; {inside[0]} has one' if inside else ', so this is no diffusers folder'}"


def _class_of_part(folder: Path) -> str:
    """Return the class in the config of a part's folder; an empty text if it names none."""
    try:
        config = json.loads(_text(folder / "config.json"))
    except ValueError:
        return ""
    architectures = config.get("architectures") if isinstance(config, dict) else None
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    return str(config.get("_class_name") or named) if isinstance(config, dict) else ""


def similar_names(path: Path) -> str:
    """Suggest names for a path that is not there: "; did you mean ...?" with the files there that have nearly the same
    name, else an empty text."""
    try:
        while not path.parent.is_dir() and path.parent != path:
            path = path.parent
        there = {each.name.lower(): each for each in sorted(path.parent.iterdir(), reverse=True)}
    except (OSError, ValueError):  # such as a name that is too long: nothing is like it
        return ""
    close = difflib.get_close_matches(path.name.lower(), there, 3)
    return f"; did you mean {' or '.join(str(there[name]) for name in close)}?" if close else ""


def part_problems(part: Path, entry: Sequence[str], files: Sequence[Path]) -> Iterator[str]:
    """Yield the problems of a component's folder. `entry` are its library and class; `files` are those with weights
    that would be loaded, which an index of shards names."""
    weighs = has_weights(entry[0], entry[1])
    if not any(part.iterdir()):
        yield f"{part}: empty, so the download or the copy is not whole"
        return
    if weighs is False or (weighs is None and not files and not (part / "config.json").exists()):
        return
    if (config := part / "config.json").is_file():
        try:
            json.loads(_text(config))
        except ValueError:
            yield f"{config}: not valid JSON"
    else:
        yield f"{config}: missing"
    present = {file.name for file in files}
    indices = list(part.glob("*.safetensors.index*.json"))
    for index in indices:
        shards = _named_shards(index)
        if (missing := sorted(shards - present)) and (shards & present or not present):
            yield f"{part / missing[0]}: missing, {index.name} names it"
    if not files and not indices:
        pickled = next((file.name for pattern in PICKLES for file in part.glob(pattern)), None)
        yield f"{part}: no weights" + (f" but {pickled}, which can run code: convert it" if pickled else "")


def _named_shards(index: Path) -> set[str]:
    try:
        return set(json.loads(_text(index))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
