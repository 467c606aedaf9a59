"""The README's first blocks run as they stand, in a terminal beside a server, and show what they say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
from PIL import Image

from tests.support.harness import REPOSITORY, Server

ADDRESS = "http://127.0.0.1:8080"


def block(language: str, holding: str) -> str:
    """Return the README's block in that language that has this text."""
    found = re.findall(rf"```{language}\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    (text,) = [each for each in found if holding in each]
    return str(text)


def test_the_first_image_and_the_sdk_run_as_they_stand(responses_server: Server, tmp_path: Path) -> None:
    server = responses_server
    (tmp_path / "darkroom-home").mkdir()
    (tmp_path / "darkroom-home" / "dev-key").write_text(f"{server.key}\n")
    first = block("sh", "curl").replace(ADDRESS, server.base)
    (tmp_path / "sdk.py").write_text(block("python", "OpenAI()"))
    script = f"set -e\n{first}\necho ======\n{sys.executable} sdk.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    curl, sdk = ran.stdout.split("======\n")
    assert curl.endswith("}\n")
    (image,) = json.loads(curl)["data"]
    lines = sdk.splitlines()
    for url in (image["url"], *lines[:2]):
        shown = httpx.get(url, timeout=60, trust_env=False)
        assert shown.headers["content-type"] == "image/png"
    assert len(lines) > 2, "the chat's answer"
    assert Image.open(tmp_path / "boat.png").size == (1536, 1024)
