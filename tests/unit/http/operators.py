"""A whole app with an operator's key, and requests by that key."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.in_process import InProcess, in_process

ADMIN = {"Authorization": "Bearer admin-of-home"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    home = tmp_path_factory.mktemp("home")
    (home / "admin-key").write_text("admin-of-home\n")
    async with in_process(home) as app:
        yield app


async def request(running: InProcess, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    return await running.client.request(method, path, json=body, headers=ADMIN | headers)
