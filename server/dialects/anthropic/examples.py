"""The examples of /openapi.json in other protocols than OpenAI's, by their names. A test sends every request."""

from server.http.examples import RED_SQUARE, WEATHER, Examples

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

_SAY_HELLO = [{"role": "user", "parts": [{"text": "Hello"}]}]
GENERATE: Examples = {
    "text": {"contents": _SAY_HELLO, "generationConfig": {"maxOutputTokens": 8, "responseModalities": ["TEXT"]}},
    "conversation with a function": {
        "systemInstruction": {"parts": [{"text": "Answer in one sentence."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Is it warm in Graz?"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "get_weather", "args": {"city": "Graz"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "get_weather", "response": {"result": "21"}}}]},
            {"role": "user", "parts": [{"text": "And in Wien?"}]},
        ],
        "tools": [{"functionDeclarations": [WEATHER]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "generationConfig": {"maxOutputTokens": 32, "responseModalities": ["TEXT"], "stopSequences": ["\n\n"]},
    },
    "picture of a picture": {
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"inlineData": {"mimeType": "image/png", "data": RED_SQUARE.partition(",")[2]}},
                    {"text": "make it blue"},
                ],
            }
        ],
        "generationConfig": {"responseModalities": ["IMAGE"], "imageConfig": {"aspectRatio": "1:1"}, "seed": 7},
    },
}
COUNT_TOKENS: Examples = {"a question": {"contents": _SAY_HELLO}}
GENERATE_EVENTS: Examples = {
    "new text": {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "Hel"}]}}],
        "modelVersion": "starter-chat",
        "responseId": "1",
    },
}
