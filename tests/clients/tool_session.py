"""Two turns with a tool by an SDK of others, against the server at OPENAI_BASE_URL. Prints what each turn said, and how
often the tool ran, as JSON. Runs in an environment of its own, with the packages of tool_sessions.txt."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

MODEL = sys.argv[2]
BASE = os.environ["OPENAI_BASE_URL"]
ASKED = "What is the weather in Rome?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RAN: list[str] = []
MAX_STEPS = 4


def get_weather(city: str) -> str:
    """Say what the weather is in a city."""
    RAN.append(city)
    return f"It is sunny in {city}."


def by_openai() -> list[str]:
    import openai

    client, messages, said = openai.OpenAI(max_retries=0), [], []
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    for _ in range(2):
        messages.append({"role": "user", "content": ASKED})
        for _ in range(MAX_STEPS):
            message = client.chat.completions.create(model=MODEL, messages=messages, tools=[tool]).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = get_weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        said.append(message.content or "")
    return said


def by_openai_responses() -> list[str]:
    import openai

    client, items, said = openai.OpenAI(max_retries=0), [], []
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
    for _ in range(2):
        items.append({"role": "user", "content": ASKED})
        for _ in range(MAX_STEPS):
            response = client.responses.create(model=MODEL, input=items, tools=[tool], store=False)
            items += response.output
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            for call in calls:
                output = get_weather(**json.loads(call.arguments))
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
        said.append(response.output_text)
    return said


def by_anthropic() -> list[str]:
    import anthropic

    client, messages, said = anthropic.Anthropic(base_url=BASE.removesuffix("/v1"), max_retries=0), [], []
    options = {"model": MODEL, "max_tokens": 500, "tools": [{"name": "get_weather", "input_schema": SCHEMA}]}
    for _ in range(2):
        messages.append({"role": "user", "content": ASKED})
        for _ in range(MAX_STEPS):
            with client.messages.stream(messages=messages, **options) as stream:
                message = stream.get_final_message()
            messages.append({"role": "assistant", "content": message.content})
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                break
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": get_weather(**call.input)} for call in calls
            ]
            messages.append({"role": "user", "content": results})
        said.append("".join(block.text for block in message.content if block.type == "text"))
    return said


def _by_langchain(model: Any) -> list[str]:
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool

    usable, messages, said = tool(get_weather), [], []
    bound = model.bind_tools([usable])
    for _ in range(2):
        messages.append(HumanMessage(ASKED))
        for _ in range(MAX_STEPS):
            message = bound.invoke(messages)
            messages.append(message)
            if not message.tool_calls:
                break
            messages += [usable.invoke(call) for call in message.tool_calls]
        said.append(str(message.text))
    return said


def by_langchain() -> list[str]:
    from langchain_openai import ChatOpenAI

    return _by_langchain(ChatOpenAI(model=MODEL, max_retries=0))


def by_langchain_anthropic() -> list[str]:
    from langchain_anthropic import ChatAnthropic

    return _by_langchain(ChatAnthropic(model=MODEL, base_url=BASE.removesuffix("/v1"), max_retries=0))


async def _by_pydantic(model: Any) -> list[str]:
    from pydantic_ai import Agent

    agent = Agent(model, tools=[get_weather])
    first = await agent.run(ASKED)
    second = await agent.run(ASKED, message_history=first.all_messages())
    return [first.output, second.output]


def by_pydantic() -> list[str]:
    from pydantic_ai.models.openai import OpenAIChatModel

    return asyncio.run(_by_pydantic(OpenAIChatModel(MODEL)))


def by_pydantic_responses() -> list[str]:
    from pydantic_ai.models.openai import OpenAIResponsesModel

    return asyncio.run(_by_pydantic(OpenAIResponsesModel(MODEL)))


def by_pydantic_google() -> list[str]:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(api_key=os.environ["GEMINI_API_KEY"], base_url=BASE.removesuffix("/v1"))
    return asyncio.run(_by_pydantic(GoogleModel(MODEL, provider=provider)))


BY: dict[str, Callable[[], list[str]]] = {
    "openai": by_openai,
    "openai-responses": by_openai_responses,
    "anthropic": by_anthropic,
    "langchain": by_langchain,
    "langchain-anthropic": by_langchain_anthropic,
    "pydantic-ai": by_pydantic,
    "pydantic-ai-responses": by_pydantic_responses,
    "pydantic-ai-google": by_pydantic_google,
}
print(json.dumps({"said": BY[sys.argv[1]](), "ran": len(RAN)}))
