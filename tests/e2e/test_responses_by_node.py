"""/v1/responses through OpenAI's Node SDK (`npm ci` in tests/node installs it)."""

import json
import os
import shutil
import subprocess

import pytest

from tests.support.harness import REPOSITORY, Server

NODE = REPOSITORY / "tests" / "node"


@pytest.mark.skipif(not shutil.which("node") or not (NODE / "node_modules").exists(), reason="npm ci in tests/node")
def test_the_node_sdk_generates_images_streams_and_polls(responses_server: Server) -> None:
    done = subprocess.run(
        ["node", "respond.mjs", "starter-chat"],
        cwd=NODE,
        env={**os.environ, "OPENAI_BASE_URL": f"{responses_server.base}/v1", "OPENAI_API_KEY": responses_server.key},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["turns"] == {
        "statuses": ["completed", "completed"],
        "same": True,
        "input": "make it blue",
        "gone": 404,
    }
    assert results["stream"]["inOrder"]
    assert "response.image_generation_call.partial_image" in results["stream"]["types"]
    assert results["background"] == "completed"
