"""A running server with the untrained starters and few steps: the picture is noise, all else is real."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.chat_servers import chat_server, make_chat_weights
from tests.support.harness import REPOSITORY, Server
from tests.support.tiny_checkpoints import make_sd

LARGE = "beta-3.1-flash.toml"  # keeps its native area, so that 2K and 4K take few tiles


CHAT = """
default     = "starter-chat"
image_model = "beta-2.5-flash-image-count"

[[models]]
name       = "starter-chat"
checkpoint = "starter-chat"
tools      = true
"""


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starters, built once for all tests."""
    folder = tmp_path_factory.mktemp("weights")
    subprocess.run([sys.executable, "-m", "starters.build", str(folder)], check=True, cwd=REPOSITORY)
    return folder


@pytest.fixture(scope="session")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped catalog, except that it takes few steps, draws small sizes at their own size, and does not chat."""
    folder = tmp_path_factory.mktemp("configs") / "model_configs"
    shutil.copytree(REPOSITORY / "model_configs", folder, ignore=shutil.ignore_patterns("chat.toml"))
    for path in folder.glob("*-*.toml"):
        text = path.read_text()
        text = re.sub(r"(?m)^(low|medium|high)( *= *\{ *steps *= *)\d+", _few_steps, text)
        text = re.sub(r"(?m)^steps( *= *)\d+", r"steps\g<1>2", text)
        if path.name != LARGE:
            text = re.sub(r"(?m)^family", "native_area_px = 65536\nfamily", text, count=1)
        path.write_text(text)
    return folder


def _few_steps(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{ {'low': 2, 'medium': 3, 'high': 4}[match[1]] }"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, weights: Path, configs: Path) -> Iterator[Server]:
    """One server for all tests that leave it as they found it."""
    running = Server(tmp_path_factory.mktemp("home"), weights, configs).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def chat_configs(tmp_path_factory: pytest.TempPathFactory, configs: Path) -> Path:
    """The same, and a chat model that calls tools."""
    folder = tmp_path_factory.mktemp("chat_configs") / "model_configs"
    shutil.copytree(configs, folder)
    (folder / "chat.toml").write_text(CHAT)
    return folder


@pytest.fixture(scope="session")
def talking(tmp_path_factory: pytest.TempPathFactory, weights: Path, chat_configs: Path) -> Iterator[Server]:
    """One server with pictures and chat, for all tests that leave it as they found it."""
    running = Server(tmp_path_factory.mktemp("talking"), weights, chat_configs, {"preload": "false"}).start()
    yield running
    running.stop()


TINY = """
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


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Weights and a catalog of one model, whose steps take next to no time."""
    weights, configs = tmp_path_factory.mktemp("tiny-weights"), tmp_path_factory.mktemp("tiny-configs")
    make_sd(weights / "tiny")
    shutil.copy(REPOSITORY / "model_configs" / "presets.toml", configs)
    (configs / "tiny.toml").write_text(TINY)
    (configs / "catalog.toml").write_text(CATALOG)
    return weights, configs


@contextmanager
def making_servers(homes: pytest.TempPathFactory, tiny: tuple[Path, Path]) -> Iterator[Callable[..., Server]]:
    """What starts servers with that catalog. They end with it at the latest."""
    with ExitStack() as ends:

        def make(**settings: str) -> Server:
            made = Server(homes.mktemp("home"), *tiny, settings)
            ends.callback(made.kill)
            return made.start()

        yield make


@pytest.fixture(scope="module")
def make_tiny(tmp_path_factory: pytest.TempPathFactory, tiny: tuple[Path, Path]) -> Iterator[Callable[..., Server]]:
    """Tiny servers for a whole file."""
    with making_servers(tmp_path_factory, tiny) as make:
        yield make


@pytest.fixture
def make_server(tmp_path_factory: pytest.TempPathFactory, tiny: tuple[Path, Path]) -> Iterator[Callable[..., Server]]:
    """Tiny servers of a test's own, to break."""
    with making_servers(tmp_path_factory, tiny) as make:
        yield make


@pytest.fixture(scope="session")
def chat_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny chat checkpoints, made once for all tests."""
    return make_chat_weights(tmp_path_factory.mktemp("chat-weights"))


@pytest.fixture(scope="session")
def chat(tmp_path_factory: pytest.TempPathFactory, chat_weights: Path) -> Iterator[Server]:
    """One server for all chat tests that leave it as they found it."""
    running = chat_server(tmp_path_factory.mktemp("chat-home"), chat_weights).start()
    yield running
    running.stop()
