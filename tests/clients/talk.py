"""Runs in .venv-clients: call the server at OPENAI_BASE_URL through LiteLLM or LangChain, print the results as JSON."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # LiteLLM would fetch it
MODEL = sys.argv[2]
HELLO = [{"role": "user", "content": "hello"}]
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


print(json.dumps({"litellm": by_litellm, "langchain": by_langchain}[sys.argv[1]]()))
