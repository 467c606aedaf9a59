"""The examples in /openapi.json, by their names. A test sends every request of them, so they are quick to answer."""

from typing import Any

Examples = dict[str, dict[str, Any]]

RED_SQUARE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAGklEQVR42mM8oaHBQApgYiARjGoY1TB0NAAAjC0BOJDn"
    "dDkAAAAASUVORK5CYII="
)
LARGER_SQUARE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAIAAAACACAIAAABMXPacAAAAyElEQVR42u3RQREAAAjDsCmZfynIQg"
    "Y8clcFTabVYbEAAAABACAAAAQAgAAAEAAAAgBAAAAIAAABACAAAAQAgAAAEAAAAgBAAAAIAAABACAAAAQAgAAAEAAAAgBAAAAIAA"
    "ABACAAAAQAgAAAEAAAAgBAAAAAcAEAAAEAIAAABACAAAAQAAACAEAAAAgAAAEAIAAABACAAAAQAAACAEAAAAgAAAEAIAAABACAAA"
    "AQAAACAEAAAAgAAAEAIAAABACAAAAQAAAC8KEF7DcD0Crgcr4AAAAASUVORK5CYII="
)
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NOTE = {
    "name": "write_note",
    "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[A-Za-z ]{1,20}"}},
}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Wien", "Graz"]}},
    "required": ["city"],
    "additionalProperties": False,
}

DRAFT = {"size": "256x256", "quality": "low"}
EDITED = {"prompt": "make it blue", **DRAFT, "image": ["<bytes of a PNG>"]}

GENERATION: Examples = {
    "text to image": {"prompt": "a red boat", **DRAFT},
    "two images as base64": {
        "model": "alpha-image-2-count",
        "prompt": "a red boat",
        "n": 2,
        **DRAFT,
        "response_format": "b64_json",
        "output_format": "jpeg",
        "seed": 7,
    },
    "image to image": {"prompt": "a blue boat", **DRAFT, "image": [RED_SQUARE], "strength": 0.5},
    "stream with previews": {"prompt": "a red boat", **DRAFT, "stream": True, "partial_images": 1},
    "in the background with previews": {"prompt": "a red boat", **DRAFT, "background": True, "partial_images": 1},
}
EDIT: Examples = {
    "one image": EDITED,
    "stream": {**EDITED, "stream": True},
    "in the background": {**EDITED, "background": True},
}
UPSCALE: Examples = {"twice the size": {"model": "beta-3-pro-image-hd-count", "image": LARGER_SQUARE, "scale": 2}}
CHAT: Examples = {
    "one answer": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8},
    "conversation": {
        "model": "starter-chat",
        "messages": [
            {"role": "system", "content": "Answer in one sentence."},
            {"role": "user", "content": [{"type": "text", "text": "Where is Graz?"}]},
            {"role": "assistant", "content": "In Austria."},
            {"role": "user", "content": "And Wien?"},
        ],
        "max_completion_tokens": 8,
        "temperature": 0.5,
        "stop": "\n",
        "logprobs": True,
        "top_logprobs": 2,
    },
    "stream with usage": {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "function call": {
        "messages": [{"role": "user", "content": "Is it warm in Graz?"}],
        "max_tokens": 32,
        "tools": [{"type": "function", "function": WEATHER}],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    },
    "custom tool": {
        "messages": [{"role": "user", "content": "Write down that it rains"}],
        "max_tokens": 64,
        "tools": [{"type": "custom", "custom": NOTE}],
        "tool_choice": {"type": "custom", "custom": {"name": "write_note"}},
    },
    "answer as JSON": {
        "messages": [{"role": "user", "content": "Name a city"}],
        "max_tokens": 32,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "place", "strict": True, "schema": CITY},
        },
    },
}
RESPONSE: Examples = {
    "text": {"input": "Hello", "instructions": "Answer in one sentence.", "max_output_tokens": 16},
    "conversation with a function": {
        "model": "starter-chat",
        "input": [
            {"role": "user", "content": "Is it warm in Graz?"},
            {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Graz"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "21 degrees"},
            {"role": "user", "content": [{"type": "input_text", "text": "And in Wien?"}]},
        ],
        "tools": [{"type": "function", **WEATHER}],
        "max_output_tokens": 16,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    },
    "answer as JSON": {
        "input": "Name a city",
        "max_output_tokens": 32,
        "text": {"format": {"type": "json_schema", "name": "place", "strict": True, "schema": CITY}},
    },
    "stream with an image": {
        "input": "Draw a red boat",
        "tools": [{"type": "image_generation", "size": "256x256", "partial_images": 1}],
        "tool_choice": {"type": "image_generation"},
        "max_output_tokens": 16,
        "stream": True,
    },
    "in the background": {"input": "Hello", "max_output_tokens": 16, "background": True, "metadata": {"user": "7"}},
}
CONVERSATION: Examples = {
    "with its first item": {"items": [{"role": "user", "content": "I am in Graz."}], "metadata": {"user": "7"}},
    "empty": {},
}
RESPONSE_TITLE: Examples = {"a title": {"title": "The boat for the calendar"}}
CHANGE_CONVERSATION: Examples = {"other metadata": {"metadata": {"topic": "travel"}}}
CONVERSATION_ITEMS: Examples = {
    "two messages": {
        "items": [
            {"role": "user", "content": "Is it warm?"},
            {"role": "assistant", "content": "It has 21 degrees."},
        ]
    },
}
BATCH: Examples = {
    "two calls": {
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "input": [
            {"custom_id": "a", "body": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}},
            {"custom_id": "b", "body": {"messages": [{"role": "user", "content": "Bye"}], "max_tokens": 8}},
        ],
    },
}
MODERATION: Examples = {
    "a text": {"input": "a quiet harbour", "model": "omni-moderation-latest"},
    "texts and images": {
        "input": [
            {"type": "text", "text": "a quiet harbour"},
            {"type": "image_url", "image_url": {"url": RED_SQUARE}},
        ]
    },
}
COMPACT: Examples = {
    "a short conversation": {
        "model": "starter-chat",
        "input": [
            {"role": "user", "content": "Where is Graz?"},
            {"role": "assistant", "content": "In Austria."},
        ],
    },
}
SWAP: Examples = {
    "other weights": {"model": "beta-2.5-flash-image-count", "checkpoint": "starter-beta"},
}
SLEEP: Examples = {"all of them": {}, "one, to come back soon": {"workers": ["chat"], "to": "host"}}
WAKE: Examples = {"all of them": {}, "one": {"workers": ["chat"]}}
MODERATION_TEST: Examples = {
    "a text, by a draft": {
        "text": "an assault rifle",
        "policy_toml": "[[rules]]\nname = 'no-weapons'\ncategory = 'violence'\nterms = ['assault rifle']\n",
    },
}
QUEUE_EVENTS: Examples = {
    "an image that is drawn": {
        "type": "queue.snapshot",
        "jobs": [
            {
                "id": "img_1",
                "object": "job",
                "kind": "image",
                "key_id": "key_1",
                "key_name": "web shop",
                "endpoint": "images.generations",
                "model": "alpha-image-2-count",
                "state": "running",
                "created_at": 1760000000.5,
                "position": 0,
                "estimated_s": 2.5,
                "step": 3,
                "steps": 8,
                "size": "1024x1024",
                "service_tier": "default",
                "tokens": None,
            }
        ],
        "workers": [],
    },
}
CREATE_KEY: Examples = {
    "a team with a monthly budget": {"name": "design team", "monthly_budget": "500.00", "days": 365, "per_minute": 60},
    "every model, no limit": {"name": "web shop"},
}
CHANGE_KEY: Examples = {"a budget, and no expiry": {"budget": "100.00", "expires_at": None}}
ROTATE_KEY: Examples = {"an hour to change over": {"overlap_s": 3600}}
CREATE_TEAM: Examples = {"a team with a budget": {"name": "design", "monthly_budget": "500.00"}}
CHANGE_TEAM: Examples = {"another budget": {"monthly_budget": "800.00"}}
CREATE_OPERATOR: Examples = {"a colleague": {"name": "anna"}}
INSPECT: Examples = {"a folder": {"checkpoint": "starter-beta"}}
ADD: Examples = {
    "other weights beside the models that are there": {
        "checkpoint": "starter-beta",
        "name": "beta-trial",
        "tiers": ["1K"],
        "price": "0.10",
    },
}
VERIFY: Examples = {"a folder": {"checkpoint": "starter-beta"}}
REMOVE: Examples = {"its catalog file alone": {"model": "beta-trial"}}
GRID: Examples = {
    "two numbers of steps": {
        "candidates": [{"name": "beta-2.5-flash-image-count"}],
        "prompts": ["a red boat"],
        "seeds": [1],
        "axis": {"steps": [1, 2]},
        "size": "256x256",
        "cell_px": 128,
    },
}

IMAGE_EVENTS: Examples = {
    "a preview": {
        "type": "image_generation.partial_image",
        "b64_json": "iVBORw0KGgo=",
        "created_at": 1760000000,
        "size": "256x256",
        "quality": "low",
        "background": "opaque",
        "output_format": "png",
        "image_index": 0,
        "partial_image_index": 0,
    },
}
CHAT_EVENTS: Examples = {
    "new text": {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1760000000,
        "model": "starter-chat",
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "choices": [{"index": 0, "delta": {"content": "Hel"}, "logprobs": None, "finish_reason": None}],
    },
}
RESPONSE_EVENTS: Examples = {
    "new text": {
        "type": "response.output_text.delta",
        "sequence_number": 4,
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": "Hel",
        "logprobs": [],
    },
}
