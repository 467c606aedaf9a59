"""Thoughts come back from clients that keep nothing of them but `encrypted_content`."""

import pytest

from pipelines.protocol.chat import ReasoningDelta, TextDelta
from server.flows.responses.request import read_response
from tests.support.response_shapes import check_event
from tests.unit.responses.test_stream_events import event_writer, new_response


@pytest.mark.parametrize("included", [True, False])
def test_thoughts_are_encrypted_content_if_the_request_includes_it_and_are_read_from_it(included: bool) -> None:
    response = new_response()
    writer = event_writer(response, encrypted=included)
    writer.write(ReasoningDelta(0, "hm, é"))
    writer.write(TextDelta(0, "Yes."))
    writer.close("stop")
    for event in response.events:
        check_event(event)
    (item, _) = response.output
    assert ("encrypted_content" in item) is included
    kept = {"type": "reasoning", "id": item["id"], "summary": [], "encrypted_content": item.get("encrypted_content")}
    said = {"type": "message", "role": "user", "content": "And?"}
    body, left_out = read_response({"input": [kept, said]})
    assert left_out == []
    assert body.input[0].content == ([{"type": "reasoning_text", "text": "hm, é"}] if included else [])  # type: ignore[union-attr]


def test_the_encrypted_thoughts_of_another_server_are_named() -> None:
    kept = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo"}
    body, left_out = read_response({"input": [kept, {"role": "user", "content": "And?"}]})
    assert left_out == ["input[0].encrypted_content"]
    assert body.input[0].content == []  # type: ignore[union-attr]
