"""A running server that chats with tiny untrained checkpoints: what they say is noise, and always the same noise."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.harness import REPOSITORY, Server

KINDS = ("qwen", "llama", "llava")
MAKE = (
    "from pathlib import Path; from tests.support.tiny_chat_checkpoints import make_{0}; "
    "make_{0}(Path({1!r}) / 'tiny-{0}')"
)
CONTEXT = 512
LOCAL = """
default = "small"

[[models]]
name = "small"
checkpoint = "tiny-qwen"
tools = true

[[models]]
name = "plain"
checkpoint = "tiny-llama"
group = "chat-plain"

[[models]]
name = "seeing"
checkpoint = "tiny-llava"
vision = true

[aliases]
"gpt-4o" = "small"
"""


def make_chat_weights(folder: Path) -> Path:
    """Three chat checkpoints, and empty folders where the catalog's pictures would come from: nobody draws here."""
    for starter in ("starter-alpha", "starter-beta"):
        (folder / starter).mkdir(parents=True)
    code = "\n".join(MAKE.format(kind, str(folder)) for kind in KINDS)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)
    return folder


def chat_server(home: Path, weights: Path, chat_toml: str = LOCAL, **settings: str) -> Server:
    """Not yet started. Weights are loaded at the first call."""
    configs = home / "model_configs"
    shutil.copytree(REPOSITORY / "model_configs", configs)
    (configs / "chat.toml").write_text(chat_toml)
    return Server(home, weights, configs, {"preload": "false", **settings})
