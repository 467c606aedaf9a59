"""A server on a GPU most of which another program has when it starts, and which is free later."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulated_gpu.build import build, unavailable
from tests.simulated_gpu.device import environment
from tests.support.harness import Server, assert_clean, charges, until
from tests.support.tiny_server import write_tiny_files

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]
GPU = "GPU-00000000-0000-0000-0000-000000000000"
BODY = {"model": "alpha-image-2-count", "prompt": "a boat", "size": "256x256", "steps": 2}
TRAIN = """
import sys
import torch
kept = torch.empty(int(0.85 * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device="cuda")
torch.cuda.mem_get_info()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    (tmp_path / "used").mkdir()
    for name, value in environment(1, 0.25, used=tmp_path / "used").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPU)


@pytest.fixture
def training(simulated: None, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program with 85 % of the GPU."""
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, str(tmp_path / "train.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def test_a_gpu_that_another_program_leaves_is_used_without_a_restart(
    training: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    server = Server(tmp_path / "home", *write_tiny_files(tmp_path, chat=False)).start()
    try:
        with server.http() as client:
            refused = client.post("/v1/images/generations", json=BODY)
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == "memory_taken"
            assert "Retry-After" in refused.headers
            assert f"train.py (PID {training.pid})" in server.log
            (worker,) = server.readiness()["image"]
            training.kill()
            training.wait()
            drawn = client.post("/v1/images/generations", json=BODY)
            assert drawn.status_code == 200, drawn.text
        assert charges(server) == 1
        assert server.readiness()["image"][0]["worker_pid"] == worker["worker_pid"]
        until(lambda: server.readiness()["checkpoints"]["tiny"]["state"] == "loaded")  # it has tried again by itself
        assert server.readiness()["image"][0]["failed"] == {}
        assert_clean(server)
    finally:
        server.kill()
