"""A GPU that is lost, behind a real server: what it costs, what operators and strangers see, and that no CPU takes its
place. The workers pretend to have GPUs (tests/support/faulty_image_worker.py)."""

import concurrent.futures
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import InternalServerError

from tests.support.faulty_image_worker import LOST, SLOW, STICKY
from tests.support.harness import Server, assert_clean, charges, suspended, until
from tests.support.tiny_server import write_tiny_files

pytestmark = pytest.mark.nightly

MODEL = "alpha-image-2-count"
GONE = "no GPU can be used: "


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_tiny_files(tmp_path_factory.mktemp("files"), chat=False)


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What becomes of the GPUs, as the names of files."""
    return tmp_path_factory.mktemp("gpus")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: tuple[Path, Path], gpus: Path) -> Iterator[Server]:
    """Two engines."""
    own = tmp_path_factory.mktemp("lost")
    engines = own / "engines.toml"
    engines.write_text('[[image]]\ndevice = "cpu"\n' * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTY_GPU", str(gpus))
        program, settings = "tests.support.faulty_server", {"engines": str(engines)}
        running = Server(own / "home", *files, settings, program=program).start()
    yield running
    running.kill()


def workers(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.readiness()["image"]
    return found


def readiness(server: Server) -> dict[str, Any] | None:
    """Nothing while it does not listen yet."""
    try:
        return server.readiness()
    except (httpx.HTTPError, FileNotFoundError):  # the admin key is made at the first start
        return None


def jobs(server: Server) -> list[int]:
    return [worker["jobs"] for worker in workers(server)]


def draw(server: Server, prompt: str = "a boat", steps: int = 2) -> None:
    answer = server.openai().images.generate(
        model=MODEL, prompt=prompt, size="256x256", response_format="b64_json", extra_body={"steps": steps}
    )
    assert answer.data


def seen_by_strangers(server: Server) -> tuple[int, Any]:
    answer = httpx.get(f"{server.base}/readyz", timeout=60, trust_env=False)
    return answer.status_code, answer.json()


@contextlib.contextmanager
def state(gpus: Path, name: str) -> Iterator[None]:
    """Of the GPUs, until the end of the block."""
    (gpus / name).touch()
    try:
        yield
    finally:
        (gpus / name).unlink()


def lose(server: Server) -> int:
    """A kernel fails for ever on one of the GPUs: which."""
    before = [worker["restarts"] for worker in workers(server)]
    with pytest.raises(InternalServerError, match="worker died"):
        draw(server, STICKY)
    after: list[int] = []

    def restarted() -> bool:
        after[:] = [worker["restarts"] for worker in workers(server)]
        return after != before

    until(restarted)
    (which,) = [index for index, count in enumerate(after) if count > before[index]]
    return which


def test_a_gpu_that_no_longer_answers_costs_the_jobs_on_it_and_comes_back(server: Server, gpus: Path) -> None:
    before = charges(server)
    pids = [worker["worker_pid"] for worker in workers(server)]
    with concurrent.futures.ThreadPoolExecutor(20) as pool, state(gpus, SLOW):
        with suspended(pids[0]), suspended(pids[1]):
            sticky = pool.submit(draw, server, STICKY)
            until(lambda: sum(jobs(server)) == 1)
            lost = jobs(server).index(1)
            others: list[concurrent.futures.Future[None]] = []
            while jobs(server)[lost] < 2 or jobs(server)[1 - lost] < 1:
                others.append(pool.submit(draw, server, "a boat", 200))  # none ends before the other one has failed
                until(lambda: sum(jobs(server)) == 1 + len(others))
            inside = jobs(server)[lost] - 1
        with pytest.raises(InternalServerError, match="worker died"):
            sticky.result(240)
        until(lambda: STICKY in (workers(server)[lost]["problem"] or ""))
        assert workers(server)[lost]["device"] is None
        assert seen_by_strangers(server) == (200, {"status": "ready"})  # the other one serves on
        outcomes = [each.exception(240) for each in others]
        assert sum(outcome is not None and "worker died" in str(outcome) for outcome in outcomes) == inside
        assert outcomes.count(None) == len(others) - inside
        draw(server)
    assert charges(server) == before + len(others) - inside + 1
    until(lambda: bool(workers(server)[lost]["ready"]))
    assert workers(server)[lost]["problem"] is None
    draw(server)
    assert_clean(server)


def test_gpus_that_do_not_come_back_are_not_replaced_by_the_cpu(server: Server, gpus: Path) -> None:
    before = charges(server)
    with state(gpus, LOST):
        first = lose(server)
        until(lambda: (workers(server)[first]["problem"] or "").startswith(GONE))
        assert workers(server)[first]["device"] is None
        assert seen_by_strangers(server) == (200, {"status": "ready"})
        draw(server)
        assert GONE in " ".join(server.darkroom("models").stdout.split())
        assert lose(server) == 1 - first
        until(lambda: all((worker["problem"] or "").startswith(GONE) for worker in workers(server)))
        assert seen_by_strangers(server) == (503, {"status": "starting"})
        with pytest.raises(InternalServerError, match="no device to compute on; nothing was charged"):
            draw(server)
        assert charges(server) == before + 1
    until(lambda: all(worker["ready"] for worker in workers(server)))
    draw(server)
    assert charges(server) == before + 2
    assert_clean(server)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_server_that_must_have_a_gpu_and_finds_none_says_why(tmp_path: Path, files: tuple[Path, Path]) -> None:
    """No worker pretends here."""
    server = Server(tmp_path / "home", *files, {"device": "cuda"}).start(wait=False)
    try:
        until(lambda: (found := readiness(server)) is not None and (found["problem"] or "").startswith(GONE))
        assert seen_by_strangers(server) == (503, {"status": "starting"})
        with pytest.raises(InternalServerError, match="no device to compute on; nothing was charged"):
            draw(server)
        assert charges(server) == 0
        assert f'reason="{GONE}' in server.log
        assert server.process is not None
        assert server.process.poll() is None
    finally:
        server.kill()
