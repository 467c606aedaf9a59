"""A group of two processes behind a real server: what the death of either costs, and what operators see."""

import concurrent.futures
import os
import shutil
import signal
from collections.abc import Iterator

import pytest
from openai import InternalServerError

from tests.support.harness import REPOSITORY, Server, assert_clean, charges, suspended, until
from tests.support.processes import command_of, group
from tests.support.tiny_families import make_family
from tests.support.tiny_server import CATALOG, IMAGES

pytestmark = pytest.mark.nightly

MODEL = "alpha-image-2-count"
GROUPED = f"{IMAGES}\n[runtime]\ngpus = 2\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    own = tmp_path_factory.mktemp("group")
    make_family("flux", own / "weights" / "tiny")
    configs = own / "configs"
    configs.mkdir()
    shutil.copy(REPOSITORY / "model_configs" / "presets.toml", configs)
    (configs / "tiny.toml").write_text(GROUPED)
    (configs / "catalog.toml").write_text(CATALOG)
    program = "tests.support.faulty_server"  # whose groups wait 15 s for a process, not 60
    running = Server(own / "home", own / "weights", configs, {"device": "cpu"}, program=program).start()
    yield running
    running.kill()


def draw(server: Server) -> None:
    assert server.openai().images.generate(model=MODEL, prompt="a boat", size="256x256", quality="low").data


def follower(server: Server) -> int:
    """The second process of the image worker."""
    (found,) = [pid for pid in group(server.readiness()["image"][0]["worker_pid"]) if b"rank_main" in command_of(pid)]
    return found


@pytest.mark.parametrize("first", [False, True])
def test_the_death_of_either_process_costs_the_job_inside_alone(first: bool, server: Server) -> None:
    before = charges(server)
    worker, second = server.readiness()["image"][0]["worker_pid"], follower(server)
    dying = worker if first else second
    with concurrent.futures.ThreadPoolExecutor(1) as pool, suspended(dying):
        call = pool.submit(draw, server)
        until(lambda: server.readiness()["image"][0]["jobs"] == 1)
        os.kill(dying, signal.SIGKILL)
        with pytest.raises(InternalServerError, match="worker died"):
            call.result(280)
    until(lambda: not command_of(worker) and not command_of(second))
    assert charges(server) == before
    until(lambda: server.readiness()["image"][0]["ready"])
    draw(server)
    assert charges(server) == before + 1
    assert command_of(follower(server))
    assert_clean(server)


def test_a_process_that_hangs_ends_the_group_which_starts_again(server: Server) -> None:
    before = charges(server)
    worker, second = server.readiness()["image"][0]["worker_pid"], follower(server)
    with suspended(second), pytest.raises(InternalServerError, match=r"worker died .*; nothing was charged"):
        draw(server)
    until(lambda: not command_of(worker) and not command_of(second))
    assert charges(server) == before
    assert "reason='a process of its group ended or hung'" in server.log
    until(lambda: server.readiness()["image"][0]["ready"])
    draw(server)
    assert charges(server) == before + 1
    assert_clean(server)


def test_operators_see_the_devices_of_a_group(server: Server) -> None:
    (worker,) = server.readiness()["image"]
    assert worker["device"].startswith("the CPU (2 processes of")
    assert "on 2 devices, parallel = 'context'" in server.readiness()["checkpoints"]["tiny"]["detail"]
    assert "2 processes" in server.darkroom("models").stdout
