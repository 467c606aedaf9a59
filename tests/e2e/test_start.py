"""Starts that are refused: one line that says what is missing and which setting names it."""

from pathlib import Path

import pytest

from tests.support.harness import REPOSITORY, Server
from tests.support.tiny_checkpoints import make_sd

CATALOG = """
default = "alpha-image-2-count"
[groups]
alpha = "alpha-image-per-call"
"""
IMAGES = """
checkpoint = "pictures"
family = "alpha"
conditioning = "img2img"
steps = 2
[[models]]
name = "alpha-image-2-count"
tier = "1K"
price = "0.10"
"""
CHAT = """
default = "talk"
group = "chat"
[[models]]
name = "talk"
checkpoint = "talk"
"""


@pytest.fixture
def refused(tmp_path: Path) -> Server:
    """A server whose catalog names two checkpoints, and whose weights folder is empty."""
    weights, configs = tmp_path / "weights", tmp_path / "configs"
    weights.mkdir()
    configs.mkdir()
    presets = (REPOSITORY / "model_configs" / "presets.toml").read_text()
    for name, text in {"catalog": CATALOG, "presets": presets, "pictures": IMAGES, "chat": CHAT}.items():
        (configs / f"{name}.toml").write_text(text)
    return Server(tmp_path / "home", weights, configs)


def test_a_missing_checkpoint_ends_the_start_with_one_line(refused: Server) -> None:
    ended = refused.darkroom("serve")
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert f"{refused.weights / 'pictures'} (named in pictures.toml)" in line
    assert f"{refused.weights / 'talk'} (named in chat.toml)" in line
    assert "DARKROOM_WEIGHTS" in line
    assert str(refused.configs) in line


def test_a_start_that_is_refused_leaves_nothing_behind(refused: Server) -> None:
    make_sd(refused.weights / "pictures")
    line = refused.darkroom("serve").stderr
    assert str(refused.weights / "talk") in line
    assert str(refused.weights / "pictures") not in line
    assert [path.name for path in refused.weights.iterdir()] == ["pictures"]
    assert not (refused.home / "dev-key").exists()  # the first start that works prints the key
