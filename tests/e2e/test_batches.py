"""A batch whose server is killed again and again: every line is answered once, and the books are exact."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from server.accounts.db import Database
from server.settings import Settings
from tests.support.gateways import gateway_settings
from tests.support.harness import PLAIN, Server, assert_clean, until
from tests.support.postgresql import Cluster
from tests.support.tiny_server import tiny_server

IMAGES, CHAT, RESPONSES = "/v1/images/generations", "/v1/chat/completions", "/v1/responses"
IMAGE = {"model": "alpha-image-2-count", "prompt": "a boat", "size": "256x256", "quality": "low"}
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "model": "starter-chat"}
DRAWN = {
    "model": "starter-chat",
    "input": "a boat",
    "tools": [{"type": "image_generation", "size": "256x256", "quality": "low"}],
    "tool_choice": {"type": "image_generation"},
}
MIXED = ((IMAGES, IMAGE), (CHAT, HELLO), (RESPONSES, DRAWN), (IMAGES, {**IMAGE, "n": 2}))
CRASH_POINTS = ("after-hold", "after-store", "before-capture-commit", "after-capture-commit")


@contextmanager
def on_database(folder: Path, name: str, program: str) -> Iterator[Server]:
    """A server that is not started yet."""
    if name == "sqlite":
        server = tiny_server(folder, program)
        try:
            yield server
        finally:
            server.kill()
        return
    with Cluster.temporary() as cluster:
        server = tiny_server(folder, program, **gateway_settings(cluster.new("template0"), folder))
        try:
            yield server
        finally:
            server.kill()


def lines(count: int) -> list[dict[str, Any]]:
    return [
        {"custom_id": f"line {i}", "method": "POST", "url": url, "body": body}
        for i in range(count)
        for url, body in [MIXED[i % len(MIXED)]]
    ]


def shown(server: Server, batch_id: str) -> dict[str, Any]:
    with server.http() as client:
        batch: dict[str, Any] = client.get(f"/v1/batches/{batch_id}").raise_for_status().json()
        return batch


def answers(server: Server, batch_id: str) -> list[dict[str, Any]]:
    with server.http() as client:
        output = client.get(f"/v1/batches/{batch_id}/output").raise_for_status().text
    return [json.loads(line) for line in output.splitlines()]


def value(server: Server, sql: str) -> int:
    where = {name: value for name, value in server.settings.items() if name == "database"}
    database = Database(Settings(home=server.home, **where).database_url)
    try:
        with database.read() as session:
            return int(session.scalar(text(sql)) or 0)
    finally:
        database.dispose()


def restart(server: Server, **settings: str) -> None:
    server.settings = {name: value for name, value in server.settings.items() if name != "crash_at"} | settings
    server.start(wait="crash_at" not in settings)  # one that kills itself may not get so far


def kill_often(server: Server, batch_id: str, total: int, points: tuple[str, ...]) -> None:
    """Let the server kill itself at each of these moments of a call; after several, kill it in the middle of the
    rest."""
    for point in (*points[1:], None):
        assert server.wait_dead() == -signal.SIGKILL
        restart(server, **({"crash_at": point} if point else {}))
    if len(points) == 1:
        return
    until(lambda: shown(server, batch_id)["request_counts"]["completed"] >= total // 2, 0.01)
    server.kill()
    restart(server)


def calls_of(body: dict[str, Any]) -> int:
    """How many image calls an answer has: a response may draw again after the image that it had to draw."""
    return sum(item["type"] == "image_generation_call" for item in body.get("output", [])) + ("data" in body)


def run(server: Server, count: int, points: tuple[str, ...]) -> None:
    server.settings = {**server.settings, "crash_at": points[0]}
    server.start()
    with server.http() as client:
        batch = client.post("/v1/batches", json={"input": lines(count)}).raise_for_status().json()
    kill_often(server, batch["id"], count, points)
    until(lambda: shown(server, batch["id"])["status"] == "completed")
    assert shown(server, batch["id"])["request_counts"] == {"total": count, "completed": count, "failed": 0}
    found = answers(server, batch["id"])
    assert [each["custom_id"] for each in found] == [f"line {i}" for i in range(count)]
    drawn = [each["response"]["body"] for each in found if "data" in each["response"]["body"]]
    urls = [image["url"] for body in drawn for image in body["data"]]
    assert len(set(urls)) == len(urls), "two lines have one image"
    charged = sum(calls_of(each["response"]["body"]) for each in found)
    assert charged >= sum(MIXED[i % len(MIXED)][0] != CHAT for i in range(count))
    assert value(server, "SELECT count(*) FROM entries") == charged
    assert value(server, "SELECT count(*) FROM holds WHERE state = 'held'") == 0
    assert value(server, "SELECT count(DISTINCT call_id) FROM entries") == charged
    for body in drawn[:3]:
        path = httpx.URL(body["data"][0]["url"]).path
        with server.http() as client:
            assert client.get(path).headers["content-type"] == "image/png"
    assert_clean(server)


@pytest.mark.daily("sqlite-one point")
@pytest.mark.parametrize("points", [CRASH_POINTS[2:3], CRASH_POINTS], ids=["one point", "all"])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_batch_outlives_the_kills_of_its_server(tmp_path: Path, database: str, points: tuple[str, ...]) -> None:
    with on_database(tmp_path, database, PLAIN) as server:
        run(server, 16, points)


@pytest.mark.nightly
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_batch_of_every_kind_of_line_outlives_five_kills(tmp_path: Path, database: str) -> None:
    with on_database(tmp_path, database, "darkroom") as server:
        run(server, 200, CRASH_POINTS)
