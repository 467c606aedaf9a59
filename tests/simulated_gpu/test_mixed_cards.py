"""A server with a large GPU, one with hardly room to draw, and one that can't hold the checkpoint. Scripted workers in
tests/unit/backends/test_mixed_cards.py have the other cases."""

import concurrent.futures
from collections.abc import Iterator

import pytest

from tests.simulated_gpu.build import build, unavailable
from tests.simulated_gpu.device import environment
from tests.support.harness import Server, assert_clean, charges, until
from tests.support.tiny_server import write_tiny_files

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]
BODY = {"model": "alpha-image-2-count", "prompt": "a boat", "size": "256x256", "steps": 2, "n": 1}
CALLS = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    build()
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "used").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(3, (80.0, 0.02, 0.001), folder / "used").items():
            patch.setenv(name, value)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        settings = {"max_running_per_key": str(CALLS)}
        running = Server(folder / "home", *write_tiny_files(folder, chat=False), settings).start()
        until(lambda: all(worker["ready"] for worker in running.readiness()["image"]))
        yield running
        running.kill()


def test_calls_wait_for_the_card_that_can_draw_them(server: Server) -> None:
    before = charges(server)
    with server.http() as client, concurrent.futures.ThreadPoolExecutor(CALLS) as pool:
        calls = [pool.submit(client.post, "/v1/images/generations", json={**BODY, "seed": n}) for n in range(CALLS)]
        answers = [call.result(240) for call in calls]
    assert [answer.status_code for answer in answers] == [200] * CALLS, {answer.text[:300] for answer in answers}
    assert charges(server) == before + CALLS
    large, _, small = server.readiness()["image"]
    assert large["failed"] == {}
    (told,) = small["failed"].values()
    assert told.startswith("it takes at least 0.00 GiB")
    assert small["jobs"] == small["restarts"] == 0
    assert "for weights: others draw it" in told
    assert "others draw it" in " ".join(server.darkroom("models").stdout.split())
    assert_clean(server)
