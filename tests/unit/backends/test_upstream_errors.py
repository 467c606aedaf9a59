"""What the errors of other servers mean: as each writes them, a line of `errors_of_upstreams.jsonl`."""

import json
from pathlib import Path
from typing import Any

import pytest

from server.backends.upstream_errors import read_error

TABLE = Path(__file__).with_name("errors_of_upstreams.jsonl")
ERRORS = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("sent", ERRORS, ids=[sent["who"] for sent in ERRORS])
def test_each_servers_errors_are_told_apart(sent: dict[str, Any]) -> None:
    error = read_error(sent["body"], sent["status"])
    assert error.code == sent["code"]
    assert (error.tokens, error.context) == (sent.get("tokens"), sent.get("context"))
    if error.exceeds_context:
        assert (error.status, error.param) == (400, "messages")
        assert "maximum context length is" in error.message or "exceeds the context window" in error.message


@pytest.mark.parametrize("sent", [sent for sent in ERRORS if "tokens" in sent], ids=lambda sent: sent["who"])
def test_a_long_conversation_is_known_in_mid_stream_too(sent: dict[str, Any]) -> None:
    error = read_error(sent["body"], None)
    assert (error.status, error.code) == (400, "context_length_exceeded")


def test_what_is_not_known_is_passed_on() -> None:
    error = read_error({"error": {"message": "no", "type": "odd", "param": "n", "code": "own"}}, 418)
    assert (error.status, error.message, error.type, error.param, error.code) == (418, "no", "odd", "n", "own")
    assert read_error("lost", None).body() == {
        "error": {"message": "lost", "type": "server_error", "param": None, "code": None}
    }
    assert read_error(7, 500).message == "7"


def test_an_error_without_an_end_is_read_in_part() -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = {"error": deep}
    assert read_error(deep, 500).status == 500
    assert read_error({"error": {"message": "context " * 1_000_000}}, 400).status == 400


@pytest.mark.parametrize(
    ("code", "status"),
    [(429, 429), ("400", 400), (200, 500), ("1000", 500), ("\u00b2", 500), ("9" * 5000, 500), (True, 500)],
)
def test_a_status_that_an_error_names_is_read_where_it_is_one(code: object, status: int) -> None:
    assert read_error({"code": code}, None).status == status


def test_numbers_that_are_none_are_no_counts() -> None:
    said = f"maximum context length is {'9' * 5000} tokens"
    assert read_error({"message": said}, 400).context is None
