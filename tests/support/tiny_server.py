"""A catalog of a tiny image model, whose steps last some milliseconds, and a tiny chat model, for servers that are
started, killed and flooded."""

import shutil
from pathlib import Path

from tests.support.harness import REPOSITORY, Server

IMAGES = """
checkpoint = "tiny"
family = "alpha"
conditioning = "img2img"
native_area_px = 65536
[quality]
default = "high"
low = { steps = 2 }
medium = { steps = 3 }
high = { steps = 4 }
[[models]]
name = "alpha-image-2-count"
tier = "1K"
price = "0.10"
"""
CATALOG = """
default = "alpha-image-2-count"
[groups]
alpha = "alpha-image-per-call"
"""
CHAT = """
default = "starter-chat"
image_model = "alpha-image-2-count"

[[models]]
name = "starter-chat"
checkpoint = "tiny-qwen"
tools = true
"""


def write_tiny_catalog(configs: Path, *, chat: bool = False) -> Path:
    shutil.copy(REPOSITORY / "model_configs" / "presets.toml", configs)
    files = {"tiny": IMAGES, "catalog": CATALOG, **({"chat": CHAT} if chat else {})}
    for name, text in files.items():
        (configs / f"{name}.toml").write_text(text)
    return configs


def tiny_server(folder: Path, program: str = "darkroom", **settings: str) -> Server:
    """A server with both models, not yet started. All its files are in the folder. `program` is the module that
    serves."""
    weights, configs = write_tiny_files(folder)
    return Server(folder / "home", weights, configs, settings, program=program)


def write_tiny_files(folder: Path, *, chat: bool = True) -> tuple[Path, Path]:
    """Weights and a catalog of both models, or of the image model alone."""
    from tests.support.tiny_chat_checkpoints import make_qwen
    from tests.support.tiny_checkpoints import make_sd

    make_sd(folder / "weights" / "tiny")
    if chat:
        make_qwen(folder / "weights" / "tiny-qwen")
    (folder / "configs").mkdir(parents=True)
    return folder / "weights", write_tiny_catalog(folder / "configs", chat=chat)
