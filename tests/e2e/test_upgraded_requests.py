"""Requests over an upgrade: what was sent to the last landed version, and is sent again to this one on the same home,
is answered as before, and charged once."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from server.accounts.db import Database
from server.settings import Settings
from tests.e2e.test_batches import CHAT, HELLO, IMAGE, IMAGES, RESPONSES, on_database
from tests.e2e.test_images_by_sdk import image
from tests.support.harness import PLAIN, REPOSITORY, Server, assert_clean, until
from tests.support.shared import make_once

PREVIOUS = "8ae6d6f20c31f9c6d27cd3f022fbf89e99987bf8"  # the version before this one: change it once this one has landed
EDITS = "/v1/images/edits"
GEMINI = "/v1beta/models/alpha-image-2-count:generateContent"
SAID = [{"role": "user", "content": "a boat"}]
TOOL = {"type": "image_generation", "size": "256x256", "steps": 1, "model": "alpha-image-2-count"}
DRAWN = {"model": "starter-chat", "tools": [TOOL], "tool_choice": "required", "max_output_tokens": 16}
KEYED: dict[str, tuple[str, dict[str, Any]]] = {  # with defaults, other servers' names, and what no version knows
    "image": (IMAGES, {**IMAGE, "n": 1, "output_format": "png", "num_inference_steps": 1, "seed": None, "glow": 3}),
    "bytes": (IMAGES, {**IMAGE, "response_format": "b64_json", "user": "u"}),
    "background": (IMAGES, {**IMAGE, "background": True}),
    "response": (RESPONSES, {**DRAWN, "input": "a boat"}),
    "items": (RESPONSES, {**DRAWN, "input": SAID, "store": False, "temperature": 1.0, "glow": 3}),
    "chat": (CHAT, {**HELLO, "temperature": 1, "stream": False}),
    "stream": (CHAT, {**HELLO, "stream": True}),
    "image in a chat": (CHAT, {"model": "alpha-image-2-count", "messages": SAID, "size": "256x256", "steps": 1}),
    "image by a chat": (CHAT, {"model": "starter-chat", "messages": SAID, "modalities": ["image"], "max_tokens": 16}),
    "gemini": (GEMINI, {"contents": [{"parts": [{"text": "a boat"}]}], "generationConfig": {"candidateCount": 1}}),
}
FREE = {"chat", "stream"}


@pytest.fixture(scope="module")
def previous() -> Path:
    """The code of the version before this one."""
    known = ["git", "cat-file", "-e", f"{PREVIOUS}^{{commit}}"]
    if (
        shutil.which("git") is None
        or subprocess.run(known, cwd=REPOSITORY, capture_output=True, check=False).returncode
    ):
        pytest.skip(f"this checkout has no history with commit {PREVIOUS[:8]}")
    return make_once("previous", _extract)


def _extract(folder: Path) -> None:
    archive = ["git", "archive", "--output", str(folder / "code.tar"), PREVIOUS]
    subprocess.run([*archive, "darkroom", "server", "pipelines", "benchmarks", "starters"], cwd=REPOSITORY, check=True)
    subprocess.run(["tar", "-xf", "code.tar"], cwd=folder, check=True)


def send(server: Server, path: str, body: dict[str, Any], idempotency_key: str | None = None) -> httpx.Response:
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    with server.http() as client:
        if path != EDITS:
            return client.post(path, json=body, headers=headers)
        return client.post(path, data=body, files={"image": image(256, 256)}, headers=headers)


def said(answer: httpx.Response) -> str:
    """An answer without its server's port, and without what each chat with images makes anew."""
    new = r'"(id|created|responseId)": ?("chatcmpl[^"]*"|"[0-9a-f]{32}"|\d+)'
    return re.sub(new, "", re.sub(r"http://127\.0\.0\.1(:\d+)?/", "/", answer.text))


def charged(server: Server) -> int:
    with server.http(server.admin_key) as client:
        return len(client.get("/admin/ledger?format=csv").text.splitlines()) - 1


def run_batch(server: Server, lines: list[dict[str, Any]]) -> str:
    batch: str = send(server, "/v1/batches", {"input": lines, "endpoint": IMAGES}).json()["id"]
    wait_batch(server, batch, len(lines))
    return batch


def wait_batch(server: Server, batch: str, completed: int) -> None:
    with server.http() as client:
        until(lambda: client.get(f"/v1/batches/{batch}").json()["status"] == "completed")
        assert client.get(f"/v1/batches/{batch}").json()["request_counts"]["completed"] == completed


def forget_answers(server: Server) -> None:
    """Leave the batches as a server that dies leaves them: their lines are charged, and their answers not recorded."""
    database = Database(Settings(home=server.home, database=server.settings.get("database")).database_url)
    try:
        with database.write() as session:
            session.execute(text("UPDATE batch_lines SET status = NULL, answer = NULL"))
            session.execute(text("UPDATE batches SET state = 'in_progress', owner = 'dead', ended_at = NULL"))
    finally:
        database.dispose()


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
def test_what_is_sent_again_after_an_upgrade_is_not_drawn_again(tmp_path: Path, previous: Path, database: str) -> None:
    sent = {**KEYED, "edit": (EDITS, {key: str(value) for key, value in IMAGE.items()})}
    lines = [{"custom_id": f"{n}", "url": IMAGES, "body": {**IMAGE, "prompt": f"{n}", "n": 1}} for n in range(3)]
    with on_database(tmp_path, database, PLAIN) as server:
        server.code = previous
        server.start()
        before = {name: send(server, *call, name) for name, call in sent.items()}
        assert {name: answer.text for name, answer in before.items() if answer.status_code >= 300} == {}
        batch = run_batch(server, lines)
        assert send(server, IMAGES, IMAGE).status_code == 200
        server.stop()
        forget_answers(server)

        server.code = REPOSITORY
        server.start()
        drawn = len(sent) - len(FREE) + len(lines) + 1
        assert charged(server) == drawn
        for name, call in sent.items():
            answer = send(server, *call, name)
            assert "idempotency-replayed" in answer.headers, (name, answer.text)
            if name != "background":
                assert said(answer) == said(before[name]), name
            else:
                assert answer.json()["id"] == before[name].json()["id"]
        wait_batch(server, batch, len(lines))
        assert charged(server) == drawn
        assert "idempotency-replayed" not in send(server, IMAGES, IMAGE).headers  # a second wish
        fresh = [send(server, IMAGES, {**IMAGE, **more}, "new") for more in ({}, {"n": 1}, {"prompt": "a moon"})]
        assert [answer.status_code for answer in fresh] == [200, 200, 422]
        assert charged(server) == drawn + 2
        assert_clean(server)
