"""A server whose workers have a simulated GPU each: one is lost in the middle of an image, and both are given back."""

import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.simulated_gpu.build import build, unavailable
from tests.simulated_gpu.device import REPOSITORY, environment
from tests.support.harness import Server, assert_clean, charges, suspended, until
from tests.support.tiny_server import write_tiny_files

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]
BODY = {"model": "alpha-image-2-count", "prompt": "a boat", "size": "256x256", "response_format": "b64_json"}
LONG = {"steps": 40}  # of a call that is under way until a GPU is lost
GPUS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two GPUs, and so two image workers."""
    build()
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "used").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(GPUS, used=folder / "used").items():
            patch.setenv(name, value)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        running = Server(folder / "home", *write_tiny_files(folder, chat=False)).start()
        until(lambda: all(worker["ready"] for worker in workers(running)))
        yield running
        running.kill()


@pytest.fixture
def used(server: Server) -> Callable[[], list[int]]:
    """The bytes of each GPU that are taken, as NVML tells another process."""
    path = REPOSITORY / "tests" / "simulated_gpu" / "site" / "pynvml.py"
    spec = importlib.util.spec_from_file_location("simulated_nvml", path)
    assert spec is not None
    assert spec.loader is not None
    nvml = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nvml)
    return lambda: [nvml.nvmlDeviceGetMemoryInfo(gpu).used for gpu in range(GPUS)]


def workers(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.readiness()["image"]
    return found


def draw(client: httpx.Client) -> str:
    answer = client.post("/v1/images/generations", json={**BODY, "steps": 2, "seed": 7})
    assert answer.status_code == 200, answer.text
    image: str = answer.json()["data"][0]["b64_json"]
    return image


def begin(client: httpx.Client) -> str:
    answer = client.post("/v1/images/generations", json={**BODY, **LONG}, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    job: str = answer.json()["id"]
    return job


def look(client: httpx.Client, job: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v1/images/jobs/{job}").json()
    return found


def test_a_gpu_lost_in_mid_image_costs_that_image_alone_and_comes_back(server: Server) -> None:
    assert [worker["device"] for worker in workers(server)] == ["Simulated H100 (cuda)"] * GPUS
    with server.http() as client:
        expected = draw(client)
        before = charges(server)
        lost, other = (worker["worker_pid"] for worker in workers(server))
        jobs: list[str] = []
        with suspended(lost), suspended(other):
            while not all(inside := [worker["jobs"] for worker in workers(server)]):
                jobs.append(begin(client))
                until(lambda: sum(worker["jobs"] for worker in workers(server)) == len(jobs))
        until(lambda: all((look(client, job)["progress"] or {}).get("step", 0) > 3 for job in jobs))
        os.kill(lost, signal.SIGUSR1)
        until(lambda: "failed" in {look(client, job)["state"] for job in jobs})
        assert httpx.get(f"{server.base}/readyz", timeout=60, trust_env=False).json() == {"status": "ready"}
        until(lambda: [worker["restarts"] for worker in workers(server)] == [1, 0])
        problem = workers(server)[0]["problem"]  # None once it is back
        assert problem is None or problem.startswith("The device no longer answers, so this worker ends: CUDA error")
        until(lambda: {look(client, job)["state"] for job in jobs} == {"failed", "succeeded"})
        failed = [found for job in jobs if (found := look(client, job))["state"] == "failed"]
        assert len(failed) == inside[0]
        assert all("nothing was charged" in each["error"]["message"] for each in failed)
        assert charges(server) == before + inside[1]
        until(lambda: all(worker["ready"] for worker in workers(server)))
        assert workers(server)[0]["worker_pid"] != lost
        assert workers(server)[0]["problem"] is None
        assert [draw(client) for _ in range(4)] == [expected] * 4
    assert charges(server) == before + inside[1] + 4
    assert "The device no longer answers, so this worker ends" in server.log
    assert_clean(server)


@pytest.mark.parametrize("place", ["host", "disk"])
def test_another_process_sees_the_memory_leave_and_come_back(
    place: str, server: Server, used: Callable[[], list[int]]
) -> None:
    with server.http() as client, server.http(server.admin_key) as admin:
        expected = draw(client)
        admin.post("/admin/wake")
        until(lambda: min(used()) > 0)
        pids = [worker["worker_pid"] for worker in workers(server)]
        assert admin.post("/admin/sleep", json={"to": place}).status_code == 200
        until(lambda: used() == [0] * GPUS)
        assert [os.path.exists(f"/proc/{pid}") for pid in pids] == [place == "host"] * GPUS
        assert draw(client) == expected
        until(lambda: max(used()) > 0)
