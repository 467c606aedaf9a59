"""What OpenAI's schema and Open Responses require of every response, item and event: the keys."""

from typing import Any

RESPONSE = {
    "id", "object", "created_at", "completed_at", "status", "error", "incomplete_details", "model", "output",
    "instructions", "previous_response_id", "tools", "tool_choice", "parallel_tool_calls", "text", "truncation",
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "reasoning", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier",
    "prompt_cache_key",
}  # fmt: skip
STATUSES = {"queued", "in_progress", "completed", "incomplete", "failed", "cancelled"}
USAGE = {"input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens"}
ITEMS = {
    "message": {"id", "status", "role", "content"},
    "function_call": {"id", "status", "call_id", "name", "arguments"},
    "custom_tool_call": {"id", "status", "call_id", "name", "input"},
    "image_generation_call": {"id", "status", "result"},
    "reasoning": {"id", "summary"},
}
COMPLETED_IMAGE = {"revised_prompt", "size", "quality", "background", "output_format", "url"}
ITEM_POSITION = {"item_id", "output_index"}
PART_POSITION = ITEM_POSITION | {"content_index"}
EVENTS = {
    "response.created": {"response"},
    "response.queued": {"response"},
    "response.in_progress": {"response"},
    "response.completed": {"response"},
    "response.incomplete": {"response"},
    "response.failed": {"response"},
    "response.output_item.added": {"output_index", "item"},
    "response.output_item.done": {"output_index", "item"},
    "response.content_part.added": PART_POSITION | {"part"},
    "response.content_part.done": PART_POSITION | {"part"},
    "response.output_text.delta": PART_POSITION | {"delta", "logprobs"},
    "response.output_text.done": PART_POSITION | {"text", "logprobs"},
    "response.reasoning_text.delta": PART_POSITION | {"delta"},
    "response.reasoning_text.done": PART_POSITION | {"text"},
    "response.function_call_arguments.delta": ITEM_POSITION | {"delta"},
    "response.function_call_arguments.done": ITEM_POSITION | {"name", "arguments"},
    "response.custom_tool_call_input.delta": ITEM_POSITION | {"delta"},
    "response.custom_tool_call_input.done": ITEM_POSITION | {"input"},
    "response.image_generation_call.in_progress": ITEM_POSITION,
    "response.image_generation_call.generating": ITEM_POSITION,
    "response.image_generation_call.partial_image": ITEM_POSITION | {"partial_image_index", "partial_image_b64"},
    "response.image_generation_call.completed": ITEM_POSITION,
    "error": {"code", "message", "param", "error"},
}


def check_event(event: dict[str, Any]) -> None:
    """Assert that the event has every required key, and its response or item too."""
    required = EVENTS[event["type"]] | {"type", "sequence_number"}
    assert required <= event.keys(), (event["type"], required - event.keys())
    if "response" in event:
        check_response(event["response"])
    if "item" in event:
        check_item(event["item"])


def check_response(response: dict[str, Any]) -> None:
    assert response.keys() >= RESPONSE, RESPONSE - response.keys()
    assert response["object"] == "response"
    assert response["id"].startswith("resp_")
    assert response["status"] in STATUSES
    assert (response["completed_at"] is not None) == (response["status"] == "completed")
    assert (response["error"] is not None) == (response["status"] == "failed")
    assert {"format"} <= response["text"].keys()
    assert {"effort", "summary"} == response["reasoning"].keys()
    for tool in response["tools"]:
        assert tool["type"] != "function" or {"name", "description", "parameters", "strict"} <= tool.keys()
    if response["status"] in {"completed", "incomplete"}:
        assert response["usage"].keys() >= USAGE
        assert {"cached_tokens", "cache_write_tokens"} <= response["usage"]["input_tokens_details"].keys()
        assert {"reasoning_tokens"} <= response["usage"]["output_tokens_details"].keys()
    for item in response["output"]:
        check_item(item)


def check_item(item: dict[str, Any]) -> None:
    required = ITEMS[item["type"]]
    assert required <= item.keys(), (item["type"], required - item.keys())
    if item["type"] == "message":
        assert item["id"].startswith("msg_")
        for part in item["content"]:
            assert {"type", "text", "annotations", "logprobs"} <= part.keys()
    if item["type"] == "image_generation_call" and item["status"] == "completed":
        assert item.keys() >= COMPLETED_IMAGE
        assert item["result"]
