"""Two image workers on the CPU: what the death of one costs, swaps on both of them, and what operators see."""

import concurrent.futures
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import InternalServerError

from tests.support.harness import Server, assert_clean, charges, suspended, until
from tests.support.tiny_checkpoints import make_sd
from tests.support.tiny_server import write_tiny_catalog

pytestmark = pytest.mark.nightly

MODEL = "alpha-image-2-count"
MOST = 30  # calls at once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    own = tmp_path_factory.mktemp("two")
    for name in ("tiny", "other", "broken"):
        make_sd(own / "weights" / name)
    for file in (own / "weights" / "broken" / "unet").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1000])
    (own / "configs").mkdir()
    (own / "engines.toml").write_text('[[image]]\ndevice = "cpu"\n[[image]]\ndevice = "cpu"\nname = "second"\n')
    settings = {"engines": str(own / "engines.toml")}
    running = Server(own / "home", own / "weights", write_tiny_catalog(own / "configs"), settings).start()
    yield running
    running.kill()


def workers(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.readiness()["image"]
    return found


def loaded(server: Server) -> list[list[str]]:
    return [[each["name"] for each in worker["checkpoints"]] for worker in workers(server)]


def draw(server: Server) -> None:
    assert server.openai().images.generate(model=MODEL, prompt="a boat", size="256x256", quality="low").data


def swap(server: Server, checkpoint: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    body = {"model": MODEL, "checkpoint": checkpoint}
    return httpx.post(f"{server.base}/admin/swap", json=body, headers=headers, timeout=280, trust_env=False)


def test_calls_are_divided_and_the_death_of_a_worker_costs_its_own_jobs_alone(server: Server) -> None:
    before, calls = charges(server), list[concurrent.futures.Future[None]]()
    dying, living = (worker["worker_pid"] for worker in workers(server))

    def jobs() -> list[int]:
        return [worker["jobs"] for worker in workers(server)]

    with concurrent.futures.ThreadPoolExecutor(MOST) as pool, suspended(living), suspended(dying):
        while not all(jobs()):  # a worker that was slower in warmup gets fewer
            calls.append(pool.submit(draw, server))
            until(lambda: sum(jobs()) == len(calls))
        lost, kept = jobs()
        os.kill(dying, signal.SIGKILL)
        until(lambda: sum(call.done() for call in calls) == lost)
        assert jobs() == [0, kept]
        for call in calls:
            if call.done():
                with pytest.raises(InternalServerError, match="worker died"):
                    call.result()
        drawn = [call for call in calls if not call.done()]
        os.kill(living, signal.SIGCONT)
        assert [call.result(280) for call in drawn] == [None] * kept
    assert charges(server) == before + kept
    until(lambda: all(worker["ready"] for worker in workers(server)))
    assert [worker["restarts"] for worker in workers(server)] == [1, 0]
    until(lambda: loaded(server) == [["tiny"], ["tiny"]])
    assert_clean(server)


def test_a_draft_waits_for_neither_of_two_long_images(server: Server) -> None:
    """Both workers draw images of minutes, which are cancelled afterwards."""
    long = {"model": MODEL, "prompt": "long", "size": "1024x1024", "steps": 200, "background": True}
    jobs: list[str] = []

    with server.http() as client:

        def state(job: str) -> dict[str, Any]:
            found: dict[str, Any] = client.get(f"/v1/images/jobs/{job}").json()
            return found

        while not all(worker["jobs"] for worker in workers(server)):  # the quicker one may get several
            jobs.append(client.post("/v1/images/generations", json=long).headers["x-darkroom-job"])
            until(lambda: sum(worker["jobs"] for worker in workers(server)) == len(jobs))
        until(lambda: all(state(job)["progress"] for job in (jobs[0], jobs[-1])))
        draw(server)
        assert {state(job)["state"] for job in jobs} <= {"queued", "running"}
        for job in jobs:
            client.post(f"/v1/images/jobs/{job}/cancel")
    until(lambda: not any(worker["jobs"] for worker in workers(server)))


def test_a_swap_loads_on_both_workers_or_changes_none(server: Server) -> None:
    refused = swap(server, "broken")
    assert refused.status_code == 400
    assert "Nothing has changed" in refused.json()["error"]["message"]
    assert loaded(server) == [["tiny"], ["tiny"]]
    assert swap(server, "other").status_code == 200
    until(lambda: loaded(server) == [["other"], ["other"]])  # the old one is evicted after the answer
    draw(server)
    assert swap(server, "tiny").status_code == 200


def test_operators_see_every_worker(server: Server) -> None:
    listed = server.darkroom("models").stdout
    for worker in workers(server):
        assert worker["device"].startswith("the CPU")
        assert worker["weights_bytes"] > 0
        assert worker["weights_budget_bytes"] > worker["weights_bytes"]
        assert worker["name"] in listed
    for name in ("image-0", "second"):
        labels = f'{{engine="{name}",kind="image"}}'
        for line in (f"engine_up{labels} 1.0", f"work_seconds{labels} 0.0", f"jobs_running{labels} 0.0"):
            until(lambda: f"darkroom_{line}" in httpx.get(f"{server.base}/metrics", timeout=60, trust_env=False).text)  # noqa: B023  # called within the loop


def test_an_engines_file_that_does_not_fit_ends_the_start_in_one_line(server: Server, tmp_path: Path) -> None:
    wrong = tmp_path / "engines.toml"
    wrong.write_text('[[image]]\ndevice = "cpu"\nmodels = ["gamma"]\n')
    shutil.copytree(server.configs, tmp_path / "configs")
    other = Server(tmp_path / "home", server.weights, tmp_path / "configs", {"engines": str(wrong)})
    ended = other.darkroom("serve")
    assert ended.returncode == 1
    assert "line 3: image[0].models: 'gamma' is not an image model" in ended.stderr
