"""model_configs/chat.toml: valid files, and the errors of broken ones."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.protocol.chat import ChatSpec
from pipelines.protocol.upstream import Upstream
from server.catalog.chat import ChatCatalog, read_chat
from server.catalog.images import load_catalog

REPOSITORY = Path(__file__).resolve().parents[3]
GOOD = """
default = "small"
group = "talk"

[[models]]
name = "small"
checkpoint = "small-folder"
tools = true
context = 4096

[[models]]
name = "large"
group = "talk-large"
upstream = "http://10.0.0.5:8000/v1/"
upstream_model = "qwen/large"
api_key_env = "LARGE_KEY"

[aliases]
"gpt-4o" = "small"
"""


def read(folder: Path, text: str) -> tuple[ChatCatalog, list[str]]:
    path = folder / "chat.toml"
    path.write_text(text)
    errors: list[str] = []
    return read_chat(path, Path("/weights"), {"a-picture-model"}, errors), errors


def test_the_shipped_catalog_has_the_starter_as_default() -> None:
    chat = load_catalog(REPOSITORY / "model_configs", Path("weights")).chat
    starter = chat.find(None)
    assert starter is chat.find("gpt-4o-mini")
    assert starter is not None
    assert starter.spec is not None
    expected = ChatSpec("starter-chat", Path("weights/starter-chat"), tools=True, max_string=300)
    assert replace(starter.spec, version="") == expected


def test_a_model_is_a_folder_or_an_upstream(tmp_path: Path) -> None:
    catalog, errors = read(tmp_path, GOOD)
    assert errors == []
    small, large = catalog.models["small"], catalog.models["large"]
    assert small.spec is not None
    expected = ChatSpec("small-folder", Path("/weights/small-folder"), tools=True, context=4096)
    assert (replace(small.spec, version=""), small.group) == (expected, "talk")
    assert (large.source, large.group) == (
        Upstream("http://10.0.0.5:8000/v1", "qwen/large", "LARGE_KEY"),
        "talk-large",
    )
    assert catalog.checkpoints == (small.spec,)


def test_names_aliases_and_the_default_are_found(tmp_path: Path) -> None:
    catalog, _ = read(tmp_path, GOOD)
    assert catalog.find(None) is catalog.find("gpt-4o") is catalog.find("small")
    assert catalog.find("large") is not None
    assert catalog.find("tiny") is None


def test_the_image_tool_draws_with_the_models_own_or_the_files_image_model(tmp_path: Path) -> None:
    shared = GOOD.replace('group = "talk"', 'group = "talk"\nimage_model = "a-picture-model"', 1)
    catalog, errors = read(tmp_path, shared)
    assert errors == []
    assert {model.image_model for model in catalog.models.values()} == {"a-picture-model"}
    _, errors = read(tmp_path, shared.replace('"a-picture-model"', '"a-chat-model"'))
    assert len(errors) == 1
    assert "image_model: 'a-chat-model' is not an image model; expected one of a-picture-model" in errors[0]


def test_no_file_is_no_chat(tmp_path: Path) -> None:
    errors: list[str] = []
    catalog = read_chat(tmp_path / "chat.toml", Path("/weights"), (), errors)
    assert (errors, catalog.checkpoints, catalog.find(None)) == ([], (), None)


def test_two_names_of_one_folder_share_its_weights(tmp_path: Path) -> None:
    two = '[[models]]\nname = "a"\ncheckpoint = "x"\n[[models]]\nname = "b"\ncheckpoint = "x"\n'
    catalog, errors = read(tmp_path, two)
    assert errors == []
    assert len(catalog.checkpoints) == 1
    _, errors = read(tmp_path, f"{two}vision = true\n")
    assert "loaded once" in errors[0]


BROKEN = [
    ('checkpoint = "small-folder"', 'folder = "small-folder"', "models[0].folder", "unknown key"),
    ('checkpoint = "small-folder"\n', "", "models[0].checkpoint", "either a checkpoint or an upstream"),
    ("context = 4096", "context = 2", "models[0].context", "at least 16"),
    ("tools = true", 'tools = "yes"', "models[0].tools", "true or false"),
    ("http://10", "ftp://10", "models[1].upstream", "http://10.0.0.5:8000/v1"),
    (":8000/v1/", ":99999/v1/", "models[1].upstream", "invalid port number"),
    ('upstream_model = "qwen/large"', "tools = true", "models[1].tools", "a checkpoint"),
    ("tools = true", 'api_key_env = "KEY"', "models[0].api_key_env", "an upstream"),
    ('name = "large"', 'name = "small"', "models[1].name", "served already"),
    ('name = "large"', 'name = "a-picture-model"', "models[1].name", "served already"),
    ('"gpt-4o" = "small"', '"gpt-4o" = "gone"', "aliases.gpt-4o", "expected one of small, large"),
    ('"gpt-4o" = "small"', '"large" = "small"', "aliases.large", "a model of its own"),
    ('default = "small"', 'default = "gone"', "default", "expected one of small, large"),
]


@pytest.mark.parametrize(("old", "new", "key", "advice"), BROKEN)
def test_an_error_names_its_key_and_its_remedy(tmp_path: Path, old: str, new: str, key: str, advice: str) -> None:
    assert old in GOOD
    _, errors = read(tmp_path, GOOD.replace(old, new, 1))
    assert any(f"{key}:" in error and advice in error for error in errors), errors
    assert all(re.search(r": line \d+: ", error) for error in errors), errors
