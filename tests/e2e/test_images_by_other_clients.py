"""Images through clients of others: drawn, edited and continued, under this server's names and those of others."""

from pathlib import Path

import pytest

from tests.e2e.test_chat_by_other_clients import NODE_CLIENTS, PYTHON, needs_python_clients, run
from tests.support.harness import REPOSITORY, Server

pytestmark = pytest.mark.nightly

SCRIPT = REPOSITORY / "tests" / "clients" / "draw.py"
BOTH = [True, True]  # an image drawn, an image edited or continued


@needs_python_clients
@pytest.mark.parametrize("client", ["openai", "litellm"])
def test_a_python_client_draws_edits_and_continues(responses_server: Server, client: str) -> None:
    results = run(responses_server, PYTHON, SCRIPT, client)
    assert set(map(tuple, results.values())) == {tuple(BOTH)}, results


@needs_python_clients
def test_langchain_draws_continues_and_edits_with_the_image_tool(responses_server: Server) -> None:
    assert run(responses_server, PYTHON, SCRIPT, "langchain")["pictures"] == [*BOTH, True]


@pytest.mark.skipif(
    not Path(NODE_CLIENTS / "node_modules" / "ai").exists(), reason="`make clients` has not installed tests/node"
)
def test_the_vercel_sdk_and_openais_draw_edit_and_continue(responses_server: Server) -> None:
    results = run(responses_server, "node", NODE_CLIENTS / "draw.mjs", "tool")
    assert results.pop("tool") == BOTH
    assert len(results) == 6
    assert all(result == BOTH for result in results.values()), results
