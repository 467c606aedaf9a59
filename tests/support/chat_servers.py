"""A server with tiny untrained chat checkpoints. Their texts are noise: bytes, invalid UTF-8 among them.

The weights are seeded, so a machine repeats its texts. On another processor rounding may favour another token: tests
assume no particular text, and use ENDLESS where the length matters.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.harness import REPOSITORY, Server

KINDS = ("qwen", "endless", "llama", "llava")
MAKE = (
    "from pathlib import Path; from tests.support.tiny_chat_checkpoints import make_{0}; "
    "make_{0}(Path({1!r}) / 'tiny-{0}')"
)
CONTEXT = 512
ENDLESS: Any = {"logit_bias": {"0": -100, "2": -100}}  # neither end token: an answer ends by its limit alone, and
# with the model "endless" not while a test looks at it
LETTERS: Any = {"logit_bias": {str(token): 100 for token in range(69, 95)}}  # a to z: text without invalid bytes
LOCAL = """
default = "small"

[[models]]
name = "small"
checkpoint = "tiny-qwen"
tools = true

[[models]]
name = "endless"
checkpoint = "tiny-endless"

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
    """Four chat checkpoints, and empty folders in place of the image checkpoints, which are never loaded."""
    for starter in ("starter-alpha", "starter-beta"):
        (folder / starter).mkdir(parents=True)
    code = "\n".join(MAKE.format(kind, str(folder)) for kind in KINDS)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)
    return folder


def chat_server(home: Path, weights: Path, chat_toml: str = LOCAL, **settings: str) -> Server:
    """The server, not yet started. It loads weights at the first call."""
    configs = home / "model_configs"
    shutil.copytree(REPOSITORY / "model_configs", configs)
    (configs / "chat.toml").write_text(chat_toml)
    return Server(home, weights, configs, {"preload": "false", **settings})
