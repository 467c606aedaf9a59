"""Every signal that a service manager, a terminal or a log rotator sends is drained, obeyed or ignored, and logged."""

import concurrent.futures
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.harness import REPOSITORY, Server, free_port, suspended, until
from tests.support.processes import command_of, group
from tests.support.tiny_server import tiny_server

pytestmark = pytest.mark.nightly

BODY: dict[str, Any] = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = tiny_server(tmp_path, "benchmarks.plain_server", preload="false").start()
    yield server
    server.kill()


def post(server: Server) -> httpx.Response:
    with server.http() as client:
        return client.post("/v1/images/generations", json=BODY)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def send(server: Server, *numbers: signal.Signals) -> None:
    assert server.process
    for number in numbers:
        server.process.send_signal(number)


def test_signals_of_rotators_and_terminals_end_nothing(server: Server) -> None:
    assert server.process
    log = server.home / "logs" / "darkroom.log"
    for number in (signal.SIGUSR1, signal.SIGHUP):  # a service's: it was not started at a terminal
        moved = log.with_suffix(f".{number.name}")
        log.rename(moved)
        send(server, number)
        until(lambda name=number.name: log.exists() and name in log.read_text())  # type: ignore[misc]
        assert f'"signal": "{number.name}"' not in moved.read_text()
    send(server, signal.SIGUSR2, signal.SIGPIPE, signal.SIGWINCH, signal.SIGTSTP)
    until(lambda: is_stopped(server.process.pid))  # type: ignore[union-attr]
    send(server, signal.SIGCONT)
    until(lambda: all(name in log.read_text() for name in ("SIGUSR2", "SIGCONT")))
    assert post(server).status_code == 200


def test_the_other_processes_leave_the_signals_of_a_group_to_the_server(server: Server) -> None:
    assert server.process
    others = group(server.process.pid)[1:]
    assert any(b"plain_worker" in command_of(pid) for pid in others)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        for pid in others:
            os.kill(pid, number)
    assert post(server).status_code == 200
    assert group(server.process.pid)[1:] == others
    assert "restart" not in server.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=lambda number: number.name)
def test_the_first_signal_drains_and_the_second_cancels(server: Server, number: signal.Signals) -> None:
    assert server.process
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with suspended(server.readiness()["worker_pid"]):
            call = pool.submit(post, server)
            until(lambda: server.readiness()["jobs"] == 1)
            send(server, number)
            until(lambda: "stopping once what runs has ended" in server.log)
            assert server.process.poll() is None
            if number != signal.SIGTERM:
                send(server, number)
                until(lambda: "stopping at once" in server.log)
                assert server.wait_dead() == 0
                assert call.result().status_code in {499, 500, 503}
                return
        assert call.result().status_code == 200
        assert server.wait_dead() == 0


def test_a_terminal_that_goes_away_drains_the_server_and_its_output_may_be_closed(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, "benchmarks.plain_server", preload="false")
    ours, theirs = pty.openpty()
    server.home.mkdir()
    server.port = free_port()
    command = [sys.executable, "-m", server.program, "serve"]
    server.process = subprocess.Popen(
        command, env=server.environment, stdin=theirs, stdout=theirs, stderr=theirs, cwd=REPOSITORY
    )
    os.close(theirs)
    try:
        server.wait_ready()
        assert post(server).status_code == 200
        os.close(ours)  # what it writes from now on fails
        send(server, signal.SIGHUP)
        assert server.wait_dead() == 0
        assert "SIGHUP" in (server.home / "logs" / "darkroom.log").read_text()
    finally:
        server.kill()


def test_output_into_a_closed_pipe_ends_nothing(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, "benchmarks.plain_server", preload="false")
    reading, writing = os.pipe()
    os.close(reading)
    server.home.mkdir()
    server.port = free_port()
    command = [sys.executable, "-m", server.program, "serve"]
    server.process = subprocess.Popen(
        command, env=server.environment, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, cwd=REPOSITORY
    )
    os.close(writing)
    try:
        server.wait_ready()
        assert post(server).status_code == 200
        server.stop()
        assert server.wait_dead() == 0
    finally:
        server.kill()
