"""Runs in .venv-clients: call the server at OPENAI_BASE_URL through a client of others, print the results as JSON."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # LiteLLM would fetch it
MODEL = sys.argv[2]
HELLO = [{"role": "user", "content": "hello"}]
WHERE = {"type": "object", "properties": {"city": {"enum": ["Wien", "Graz"]}}, "required": ["city"]}
LETTERS = {str(token): 100 for token in range(69, 95)}  # as in tests/support/chat_servers.py


def by_litellm() -> dict[str, object]:
    import litellm

    options = {"model": f"openai/{MODEL}", "messages": HELLO, "temperature": 0, "max_tokens": 12, "logit_bias": LETTERS}
    answer = litellm.completion(**options)
    stream = litellm.completion(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    results = {
        "text": answer.choices[0].message.content,
        "tokens": answer.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "streamed_tokens": [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)][-1],
    }
    for name, override in {
        "unknown": {"model": "openai/gone"},
        "overflow": {"messages": [{**HELLO[0], "content": "x" * 9000}]},
    }.items():
        try:
            litellm.completion(**{**options, **override})
        except Exception as error:
            results[name] = type(error).__name__
    return results


def by_langchain() -> dict[str, object]:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, temperature=0, max_tokens=12, logit_bias=LETTERS, stream_usage=True, max_retries=0)
    answer = model.invoke("hello")
    chunks = list(model.stream("hello"))
    return {
        "text": answer.content,
        "tokens": answer.usage_metadata["output_tokens"],
        "streamed": "".join(chunk.content for chunk in chunks),
        "streamed_tokens": sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata),
    }


def by_anthropic() -> dict[str, object]:
    import anthropic

    client = anthropic.Anthropic(base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), max_retries=0)
    greedy = {"temperature": 0}  # newer SDKs know no sampling options
    options = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "extra_body": greedy}
    answer = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    tool = {"name": "look", "input_schema": {**WHERE, "additionalProperties": False}}
    forced = {"tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 64}
    called = client.messages.create(**{**options, **forced})
    with client.messages.stream(**{**options, **forced}) as stream:
        streamed_call = stream.get_final_message()
    result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "a star"}
    said = {"role": "assistant", "content": called.content}
    after = client.messages.create(
        **{**options, "messages": [*HELLO, said, {"role": "user", "content": [result]}], "tools": [tool]}
    )
    results = {
        "text": answer.content[0].text,
        "usage": [answer.usage.input_tokens, answer.usage.output_tokens],
        "end": answer.stop_reason,
        "streamed": streamed,
        "streamed_usage": [final.usage.input_tokens, final.usage.output_tokens],
        "calls": [[block.name, block.input] for message in (called, streamed_call) for block in message.content],
        "call_ends": [called.stop_reason, streamed_call.stop_reason],
        "after": after.usage.output_tokens,
        "counted": client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens,
        "request": answer._request_id,
    }
    for name, override in {
        "unknown": {"model": "gone"},
        "field": {"extra_body": {"temperature": 9}},
        "hosted": {
            "tools": [{"type": "web_search_20250305", "name": "web_search"}],
            "tool_choice": {"type": "tool", "name": "web_search"},  # a tool that it merely may call is left out
        },
        "overflow": {"messages": [{**HELLO[0], "content": "x" * 9000}]},
    }.items():
        try:
            client.messages.create(**{**options, **override})
        except anthropic.APIStatusError as error:
            results[name] = [type(error).__name__, error.body["error"]["type"], error.body["error"].get("param")]
    return results


def by_gemini() -> dict[str, object]:
    import struct

    from google import genai
    from google.genai import errors, types

    base = {"base_url": os.environ["OPENAI_BASE_URL"].removesuffix("/v1")}
    client = genai.Client(api_key=os.environ["GEMINI_API_KEY"], http_options=base)  # it closes when it is forgotten
    models = client.models
    beta = genai.Client(api_key=os.environ["GEMINI_API_KEY"], http_options={**base, "api_version": "v1beta"})
    image = types.GenerateContentConfig(
        response_modalities=["IMAGE"], image_config=types.ImageConfig(aspect_ratio="1:1"), seed=7
    )
    words = types.GenerateContentConfig(response_modalities=["TEXT"], max_output_tokens=12, temperature=0)

    def seen(answer: types.GenerateContentResponse) -> list[object]:
        candidate = answer.candidates[0]
        blob = candidate.content.parts[0].inline_data
        return [blob.mime_type, list(struct.unpack(">II", blob.data[16:24])), candidate.finish_reason.value]

    drawn = models.generate_content(model=MODEL, contents="a red boat", config=image)
    chain = [types.UserContent("a red boat"), drawn.candidates[0].content, types.UserContent("make it blue")]
    continued = models.generate_content(model=MODEL, contents=chain, config=image)
    sent = [types.Part.from_bytes(data=drawn.candidates[0].content.parts[0].inline_data.data, mime_type="image/png")]
    edited = models.generate_content(model=MODEL, contents=["make it blue", *sent], config=image)
    streamed = list(models.generate_content_stream(model=MODEL, contents="a boat", config=image))
    text = models.generate_content(model=MODEL, contents="hello", config=words)
    pieces = list(models.generate_content_stream(model=MODEL, contents="hello", config=words))
    poll = types.FunctionDeclaration(name="look", parameters_json_schema={**WHERE, "additionalProperties": False})
    forced = words.model_copy(
        update={
            "max_output_tokens": 64,
            "tools": [types.Tool(function_declarations=[poll])],
            "tool_config": types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="ANY")),
        }
    )
    called = models.generate_content(model=MODEL, contents="look", config=forced)
    results = {
        "drawn": seen(drawn),
        "edited": seen(edited),
        "continued": seen(continued),
        "streamed": sum(bool(part.inline_data) for chunk in streamed for part in chunk.parts or ()),
        "image_tokens": drawn.usage_metadata.candidates_tokens_details[0].token_count,
        "text": text.text or "",  # random weights may write nothing that shows
        "text_streamed": "".join(chunk.text or "" for chunk in pieces),
        "prompt_tokens": text.usage_metadata.prompt_token_count,
        "counted": models.count_tokens(model=MODEL, contents="hello").total_tokens,
        "calls": [[call.name, call.args] for call in called.function_calls or ()][:1],
        "models": [model.name for model in beta.models.list()],
        "model": beta.models.get(model=MODEL).name,
    }
    huge = image.model_copy(update={"image_config": types.ImageConfig(image_size="4K")})
    for name, key, call in (
        ("unknown", os.environ["GEMINI_API_KEY"], {"model": "gone", "config": words}),
        ("size", os.environ["GEMINI_API_KEY"], {"model": MODEL, "config": huge}),
        ("key", "wrong", {"model": MODEL, "config": words}),
    ):
        try:
            other = genai.Client(api_key=key, http_options=base)
            other.models.generate_content(contents="x", **call)
        except errors.APIError as error:
            results[name] = [type(error).__name__, error.code, error.status]
    return results


BY = {"gemini": by_gemini, "litellm": by_litellm, "langchain": by_langchain, "anthropic": by_anthropic}
print(json.dumps(BY[sys.argv[1]]()))
