"""The examples of /openapi.json for Messages, by their names. A test sends every request."""

from server.http.examples import WEATHER, Examples

_TOOL = {"name": WEATHER["name"], "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}

MESSAGES: Examples = {
    "one answer": {
        "model": "starter-chat",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Hello"}],
    },
    "conversation with a tool": {
        "model": "starter-chat",
        "max_tokens": 16,
        "system": "Answer in one sentence.",
        "messages": [
            {"role": "user", "content": "Is it warm in Graz?"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Graz"}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "21 degrees"},
                    {"type": "text", "text": "And in Wien?"},
                ],
            },
        ],
        "tools": [_TOOL],
        "tool_choice": {"type": "any"},
        "stop_sequences": ["\n\n"],
    },
    "stream": {
        "model": "starter-chat",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "stream": True,
    },
}
COUNT: Examples = {
    "a question": {"model": "starter-chat", "messages": [{"role": "user", "content": "Hello"}], "tools": [_TOOL]},
}
MESSAGE_EVENTS: Examples = {
    "new text": {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
}
