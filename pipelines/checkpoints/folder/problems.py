"""Finds the faults of a checkpoint's folder by looking at its files: for inspecting it, and before it is loaded."""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pipelines.checkpoints.classes.source import has_weights
from pipelines.checkpoints.folder.folder import read_json
from pipelines.checkpoints.folder.versions import HUB_CACHE
from pipelines.checkpoints.weight_file.header import LFS_POINTER, pickles_in
from pipelines.checkpoints.weight_file.kinds import kind_by_config

STEMS: Final = {
    "diffusers": "diffusion_pytorch_model",
    "transformers": "model",
}  # of the files that a library looks for
SHARD: Final = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
MOST_OF_A_POINTER: Final = 1000  # bytes
PARSED_BYTES: Final = 2**20  # of larger ones, such as a tokenizer's words, only the beginning is read


def other_kind(folder: Path) -> str:
    """Describe a folder without model_index.json, for the operator."""
    index = folder / "model_index.json"
    if index.is_symlink():
        return f"{index}: a link to a file that is missing, so the download or the copy is not whole"
    if folder.name.startswith(HUB_CACHE):
        return f"{folder}: a download without a snapshot, so it is not whole"
    if (kind := kind_by_config(read_json(folder / "config.json"))) is not None:
        return f"{folder}: {kind}"
    if '"architectures"' in _text(folder / "config.json"):
        return f"{folder}: a chat model or classifier of transformers: name it in chat.toml or the moderation policy"
    if (folder / "adapter_config.json").is_file():
        return f"{folder}: a LoRA adapter: see `loras` and `lora_folder` in [runtime]"
    inside = sorted(each.parent for each in folder.glob("*/model_index.json"))
    if inside:
        return f"{folder}: no model_index.json; {inside[0]} has one"
    files = sorted(each for each in folder.glob("[!.]*") if each.suffix in {".safetensors", ".gguf"})
    hint = f"; for a file in it, name the file: {files[0]}" if files else ""
    return f"{folder}: no model_index.json, so this is no diffusers folder{hint}"


def similar_names(path: Path) -> str:
    """Return the end of an error message that suggests names for a path that is not there: "; did you mean ...?" with
    the files there that have nearly the same name, else an empty text."""
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
    yield from _unread_files(part)
    if str(entry[1]).endswith("Scheduler") and not (file := part / "scheduler_config.json").is_file():
        yield f"{file}: missing"
    config = part / "config.json"
    if weighs is False or (weighs is None and not files and not config.exists()):
        return
    if not config.is_file():
        yield f"{config}: missing"
    elif _text(config).lstrip()[:1] != "{" and _is_json(config):
        yield f"{config}: no JSON object"
    yield from _weight_problems(part, entry[0], files)


def _unread_files(part: Path) -> Iterator[str]:
    """Yield the files that are no text in JSON, or none of their own."""
    for file in sorted(part.iterdir()):
        if file.name.startswith(".") or file.suffix == ".safetensors" or not file.is_file():
            continue
        size = file.stat().st_size
        if size <= MOST_OF_A_POINTER and file.read_bytes().startswith(LFS_POINTER):
            yield f"{file}: a pointer of git-lfs in place of the file: `git lfs pull` brings it"
        elif file.suffix == ".json" and not _is_json(file):
            yield f"{file}: not valid JSON"


def _is_json(file: Path) -> bool:
    with file.open("rb") as stream:
        if file.stat().st_size > PARSED_BYTES:
            return stream.read(100).lstrip()[:1] in {b"{", b"["}
        try:
            json.loads(stream.read())
        except ValueError:
            return False
    return True


def _weight_problems(part: Path, library: str, files: Sequence[Path]) -> Iterator[str]:
    """Yield the files of weights that are missing, or that the library does not look for."""
    present = {file.name for file in files}
    stem = STEMS.get(library)
    indices = list(part.glob("*.safetensors.index*.json"))
    for index in indices:
        shards = _named_shards(index)
        if not shards and _is_json(index):
            yield f"{index}: names no shards"
        is_read = library == "diffusers" and index.name == f"{stem}.safetensors.index.json"  # before a whole file
        if (missing := sorted(shards - present)) and (is_read or shards & present or not present):
            yield f"{part / missing[0]}: missing, {index.name} names it"
    if not files and not indices:
        pickled = next((file.name for file in pickles_in(part)), None)
        yield f"{part}: no weights" + (f" but {pickled}, which can run code: convert it" if pickled else "")
    if files and not indices and all(SHARD.search(name) for name in present):
        index_name = SHARD.sub(".safetensors.index.json", files[0].name)
        yield f"{part / index_name}: missing, which says what is in which shard"
    if files and stem is not None and not any(re.match(rf"{stem}[.-]", name) for name in present):
        yield f"{part}: no {stem}.safetensors but {files[0].name}, which is not looked for: rename it"


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
