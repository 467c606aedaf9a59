"""Runs in .venv-clients: talk to the server at OPENAI_BASE_URL through LiteLLM and LangChain, say as JSON what came."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # LiteLLM would fetch it
MODEL = sys.argv[2]
HELLO = [{"role": "user", "content": "hello"}]


def by_litellm() -> dict[str, object]:
    import litellm

    options = {"model": f"openai/{MODEL}", "messages": HELLO, "temperature": 0, "max_tokens": 12}
    answer = litellm.completion(**options)
    stream = litellm.completion(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    told = {
        "text": answer.choices[0].message.content,
        "tokens": answer.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "streamed_tokens": [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)][-1],
    }
    for name, wrong in {
        "unknown": {"model": "openai/gone"},
        "overflow": {"messages": [{**HELLO[0], "content": "x" * 9000}]},
    }.items():
        try:
            litellm.completion(**{**options, **wrong})
        except Exception as error:
            told[name] = type(error).__name__
    return told


def by_langchain() -> dict[str, object]:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, temperature=0, max_tokens=12, stream_usage=True, max_retries=0)
    answer = model.invoke("hello")
    chunks = list(model.stream("hello"))
    return {
        "text": answer.content,
        "tokens": answer.usage_metadata["output_tokens"],
        "streamed": "".join(chunk.content for chunk in chunks),
        "streamed_tokens": sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata),
    }


print(json.dumps({"litellm": by_litellm, "langchain": by_langchain}[sys.argv[1]]()))
