"""Running servers for the end-to-end tests.

Most have untrained checkpoints and few steps: images and texts are noise, all else is real. So no test assumes what a
model writes, and each bounds how much.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.chat_servers import chat_server, make_chat_weights
from tests.support.harness import REPOSITORY, MakeServer, Server
from tests.support.shared import make_once
from tests.support.tiny_checkpoints import make_sd
from tests.support.tiny_families.channels import with_channels
from tests.support.tiny_server import write_tiny_catalog
from tests.support.untrained_starters import make_untrained_starters

LARGE = "beta-3.1-flash.toml"  # keeps its native area, so that 2K and 4K need few tiles
CHAT = """
default     = "starter-chat"
image_model = "beta-2.5-flash-image-count"

[[models]]
name       = "starter-chat"
checkpoint = "starter-chat"
tools      = true
"""
WITH_ALPHA = """
checkpoint     = "with-alpha"
family         = "alpha"
conditioning   = "img2img"
native_area_px = 65536
steps          = 2

[[models]]
name  = "alpha-image-3-count"
tier  = "1K"
price = "0.10"
"""


@pytest.fixture(scope="session")
def weights() -> Path:
    """The untrained starters."""
    return make_once("weights", make_untrained_starters)


@pytest.fixture(scope="session")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped catalog without chat, with few steps, and small sizes drawn without upscaling."""
    folder = tmp_path_factory.mktemp("configs") / "model_configs"
    shutil.copytree(REPOSITORY / "model_configs", folder, ignore=shutil.ignore_patterns("chat.toml"))
    for path in folder.glob("*-*.toml"):
        text = path.read_text()
        text = re.sub(r"(?m)^(low|medium|high|xhigh|max)( *= *\{ *steps *= *)\d+", _few_steps, text)
        text = re.sub(r"(?m)^steps( *= *)\d+", r"steps\g<1>2", text)
        if path.name != LARGE:
            text = re.sub(r"(?m)^(family|from)", r"native_area_px = 65536\n\1", text)
        path.write_text(text)
    return folder


def _few_steps(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{ {'low': 2, 'medium': 3, 'high': 4, 'xhigh': 5, 'max': 6}[match[1]] }"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, weights: Path, configs: Path) -> Iterator[Server]:
    """An image server for all tests that do not change it."""
    running = Server(tmp_path_factory.mktemp("home"), weights, configs).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def chat_configs(tmp_path_factory: pytest.TempPathFactory, configs: Path) -> Path:
    """The same with a chat model that calls tools."""
    folder = tmp_path_factory.mktemp("chat_configs") / "model_configs"
    shutil.copytree(configs, folder)
    (folder / "chat.toml").write_text(CHAT)
    return folder


@pytest.fixture(scope="session")
def responses_server(tmp_path_factory: pytest.TempPathFactory, weights: Path, chat_configs: Path) -> Iterator[Server]:
    """A server with images and chat for all tests that do not change it."""
    running = Server(tmp_path_factory.mktemp("responses-home"), weights, chat_configs, {"preload": "false"}).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Weights and a catalog of one image model, whose steps last some milliseconds."""
    return make_once("tiny-weights", make_tiny_weights), write_tiny_catalog(tmp_path_factory.mktemp("tiny-configs"))


def make_tiny_weights(folder: Path) -> None:
    make_sd(folder / "tiny")
    with_channels(4).save_pretrained(folder / "with-alpha", safe_serialization=True)


@contextmanager
def server_factory(homes: pytest.TempPathFactory, tiny: tuple[Path, Path]) -> Iterator[MakeServer]:
    """A function that starts servers with that catalog. They are killed at the end."""
    with ExitStack() as cleanup:

        def make(program: str = "darkroom", descriptors: int | None = None, **settings: str) -> Server:
            made = Server(homes.mktemp("home"), *tiny, settings, descriptors=descriptors, program=program)
            cleanup.callback(made.kill)
            return made.start()

        yield make


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory, tiny: tuple[Path, Path]) -> Iterator[Server]:
    """A server with that model, and one whose images have alpha, for all tests that do not change it."""
    weights, configs = tiny[0], shutil.copytree(tiny[1], tmp_path_factory.mktemp("alpha") / "configs")
    (configs / "with-alpha.toml").write_text(WITH_ALPHA)
    with server_factory(tmp_path_factory, (weights, configs)) as make:
        yield make()


@pytest.fixture(scope="module")
def make_tiny(tmp_path_factory: pytest.TempPathFactory, tiny: tuple[Path, Path]) -> Iterator[MakeServer]:
    """Starts tiny servers that live until the end of a file."""
    with server_factory(tmp_path_factory, tiny) as make:
        yield make


@pytest.fixture
def make_server(tmp_path_factory: pytest.TempPathFactory, tiny: tuple[Path, Path]) -> Iterator[MakeServer]:
    """Starts tiny servers that live until the end of a test."""
    with server_factory(tmp_path_factory, tiny) as make:
        yield make


@pytest.fixture(scope="session")
def chat_weights() -> Path:
    return make_once("chat-weights", make_chat_weights)


@pytest.fixture(scope="session")
def chat(tmp_path_factory: pytest.TempPathFactory, chat_weights: Path) -> Iterator[Server]:
    """A chat server for all tests that do not change it."""
    running = chat_server(tmp_path_factory.mktemp("chat-home"), chat_weights).start()
    yield running
    running.stop()
