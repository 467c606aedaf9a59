"""How often adding a checkpoint reads the header of each file, and parses each source of diffusers."""

import ast
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.checkpoints.classes import source as call_signature
from pipelines.checkpoints.weight_file import file as weight_file
from pipelines.checkpoints.weight_file.header import Header, read_header
from server.flows.operators.checkpoints import CheckpointManager
from tests.support.weight_files import denoiser_file, flux_folder, gguf_file
from tests.unit.catalog.test_whole_files import configs_alone, whole_file


def whole(weights: Path) -> Path:
    configs_alone(weights / "layout")
    return whole_file(weights / "dream.safetensors", 3000)


def alone(weights: Path) -> Path:
    flux_folder(weights / "flux")
    return denoiser_file(weights / "tuned.safetensors")


def gguf(weights: Path) -> Path:
    flux_folder(weights / "flux", transformer={"guidance_embeds": False})
    return gguf_file(weights / "tuned.gguf", 992)


def folder(weights: Path) -> Path:
    return flux_folder(weights / "flux")


@pytest.mark.parametrize("make", [whole, alone, gguf, folder])
def test_each_header_and_each_source_is_read_once(
    make: Callable[[Path], Path],
    manager: CheckpointManager,
    folders: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers: Counter[Path] = Counter()
    sources: Counter[str] = Counter()
    parse = ast.parse

    def counted_read(file: Path) -> Header:
        headers[file] += 1
        return read_header(file)

    def counted_parse(text: str) -> Any:
        sources[text] += 1
        return parse(text)

    monkeypatch.setattr(weight_file, "read_header", counted_read)
    monkeypatch.setattr(ast, "parse", counted_parse)
    call_signature.installed_pipelines.cache_clear()
    call_signature._classes.cache_clear()
    path = make(folders[1])
    choices = {"config": "layout"} if make is whole else {"base": "flux"} if make is gguf else {}
    assert manager.add(path.name, name="mine", family="alpha", price="1", **choices).models == ("mine",)
    assert headers[path] == (1 if path.is_file() else 0)
    assert set(headers.values()) == {1}
    assert set(sources.values()) == {1}
