"""The examples of /openapi.json for generateContent, by their names. A test sends every request."""

from server.http.examples import RED_SQUARE, WEATHER, Examples

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
