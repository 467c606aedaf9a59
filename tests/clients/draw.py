"""Runs in .venv-clients: draw, edit and continue through a client of others, print the results as JSON."""

import base64
import io
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # LiteLLM would fetch it
SIZE = "256x256"
PNG = b"\x89PNG"


def by_openai() -> dict[str, object]:
    """OpenAI's SDK in an older version than Darkroom's own tests have: whole, streamed and by the image tool."""
    import openai

    client = openai.OpenAI(max_retries=0)
    results: dict[str, object] = {}
    for name in ("gpt-image-1", "dall-e-3", "beta-3-pro-image-count"):
        drawn = base64.b64decode(client.images.generate(model=name, prompt="a red boat", size=SIZE).data[0].b64_json)
        edited = client.images.edit(model=name, prompt="make it blue", image=("boat.png", drawn, "image/png"))
        results[name] = [drawn.startswith(PNG), base64.b64decode(edited.data[0].b64_json).startswith(PNG)]
    stream = client.images.generate(model="gpt-image-1", prompt="a tree", size=SIZE, stream=True, partial_images=1)
    results["stream"] = [base64.b64decode(event.b64_json).startswith(PNG) for event in stream]
    tool = {"type": "image_generation", "size": SIZE}
    call = {"model": "starter-chat", "tools": [tool], "tool_choice": {"type": "image_generation"}}
    first = client.responses.create(input="draw a red boat", max_output_tokens=64, **call)
    second = client.responses.create(input="make it blue", max_output_tokens=64, previous_response_id=first.id, **call)
    results["tool"] = _images(first, second)
    return results


def _images(*answers: object) -> list[bool]:
    items = (item for answer in answers for item in answer.output)
    return [base64.b64decode(item.result).startswith(PNG) for item in items if item.type == "image_generation_call"]


def by_litellm() -> dict[str, object]:
    import litellm

    results: dict[str, object] = {}
    for name in ("gpt-image-1", "beta-3-pro-image-count"):
        options = {"model": f"openai/{name}", "api_base": os.environ["OPENAI_BASE_URL"], "size": SIZE}
        drawn = base64.b64decode(litellm.image_generation(prompt="a red boat", **options).data[0].b64_json)
        file = io.BytesIO(drawn)
        file.name = "boat.png"
        edited = litellm.image_edit(image=file, prompt="make it blue", **options)
        results[name] = [drawn.startswith(PNG), base64.b64decode(edited.data[0].b64_json).startswith(PNG)]
    tool = {"type": "image_generation", "size": SIZE}
    call = {"model": "openai/starter-chat", "tools": [tool], "tool_choice": {"type": "image_generation"}}
    first = litellm.responses(input="draw a red boat", max_output_tokens=64, **call)
    second = litellm.responses(input="make it blue", max_output_tokens=64, previous_response_id=first.id, **call)
    results["tool"] = _images(first, second)
    return results


def by_langchain() -> dict[str, object]:
    """The image tool of /v1/responses, three times: the second image continues from the first, the third edits a
    image in a message. With what its own live tests send: a quality that the served model does not have, and a
    threshold of compaction."""
    from langchain_openai import ChatOpenAI

    options = {
        "context_management": [{"type": "compaction", "compact_threshold": 2000}],
        "reasoning": {"effort": "low"},
    }
    model = ChatOpenAI(model="starter-chat", use_responses_api=True, max_tokens=64, max_retries=0, **options)
    tool = {"type": "image_generation", "size": SIZE, "quality": "low"}
    bound = model.bind_tools([tool], tool_choice="image_generation")
    first = bound.invoke("draw a red boat")
    second = bound.invoke("make it blue", previous_response_id=first.response_metadata["id"])
    drawn = next(block["base64"] for block in first.content_blocks if block["type"] == "image")
    part = {"type": "image", "base64": drawn, "mime_type": "image/png"}
    message = {"role": "user", "content": [{"type": "text", "text": "make it green"}, part]}
    edited = bound.invoke([message])
    answers = (first, second, edited)
    images = [block["base64"] for answer in answers for block in answer.content_blocks if block["type"] == "image"]
    return {"pictures": [base64.b64decode(image).startswith(PNG) for image in images]}


print(json.dumps({"openai": by_openai, "litellm": by_litellm, "langchain": by_langchain}[sys.argv[1]]()))
