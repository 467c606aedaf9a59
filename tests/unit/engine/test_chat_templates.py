"""What a model is shown: every word of a conversation, whatever its chat template takes."""

import json
import re
from functools import cache
from typing import Any

import pytest

from pipelines.chat.encoding import Conversation, template_input, template_messages
from pipelines.chat.prompts.chat_template import ChatTemplates
from pipelines.chat.prompts.thinking import asks_to_think, template_variables, unused_options
from starters.chat.tokens import make_tokenizer
from tests.support.chat_templates import FAMILIES
from tests.support.conversations import CONVERSATIONS, ID, Message, call, result, said

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
WITHOUT_TOOLS = {"ministral-3", "gemma-2", "deepseek-r1"}
WITH_TOOLS = [name for name in FAMILIES if name not in WITHOUT_TOOLS]
LOSES_TEXT_BESIDE_CALLS = {"mistral-nemo"}  # its roles alternate, so the text can't be a message of its own either


@cache
def templates(family: str) -> ChatTemplates:
    tokenizer = make_tokenizer([])
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    return ChatTemplates.of(tokenizer, FAMILIES[family])


def prompt(family: str, *messages: Message, tools: bool = False, **options: Any) -> str:
    """As the engine builds it, as text."""
    use = templates(family).choose(tools=tools, documents="documents" in options)
    offered = (WEATHER,) if tools else ()
    return use.render(*template_input(use, Conversation(template_messages(None, messages, ()), offered, options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_word_is_in_the_prompt(family: str, name: str, tools: bool) -> None:
    if tools and family in WITHOUT_TOOLS:
        assert templates(family).choose(tools=True).traits.tools is None
        return
    messages = CONVERSATIONS[name]
    shown = prompt(family, *messages, tools=tools)
    words = re.findall(r"say\d", json.dumps(messages))
    assert [word for word in words if word not in shown] == []
    assert shown.count("get_weather") >= sum(len(one.get("tool_calls", ())) for one in messages) + tools
    assert ("'city'" in shown) is (family == "smollm3" and tools)  # whose tools are in Python's notation as published


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_text_beside_a_call_is_in_the_prompt(family: str) -> None:
    messages = [said("user", "say1"), said("assistant", "say2", tool_calls=[call(ID, city="say3")]), result(ID, "say4")]
    shown = prompt(family, *messages, tools=True)
    assert ("say2" in shown) is (family not in LOSES_TEXT_BESIDE_CALLS)
    assert all(word in shown for word in ("say1", "say3", "say4"))


CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
ODD_PARAMETERS: dict[str, Any] = {
    "types": {"type": "object", "properties": {"city": {"type": ["string", "null"]}}},
    "nulls": {"type": "object", "properties": {"city": {"type": "string", "description": None}}, "required": None},
    "no properties": {"type": "object", "properties": None, "title": "city"},
    "PHP's empty object": {"type": "object", "properties": [], "title": "city"},
    "anything": {"type": "object", "properties": {"city": True, "all": {"type": "array", "items": True}}},
    "a reference": {"$ref": "#/$defs/City", "$defs": {"City": CITY}},
    "a union": {"anyOf": [CITY, {"type": "object", "properties": {"zip": {"type": "string"}}}]},
}


@pytest.mark.parametrize("name", ODD_PARAMETERS)
@pytest.mark.parametrize("family", WITH_TOOLS)
def test_arguments_of_any_schema_are_in_the_prompt(family: str, name: str) -> None:
    use, parameters = templates(family).choose(tools=True), ODD_PARAMETERS[name]
    tool = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": parameters}}
    shown = use.render(*template_input(use, Conversation([said("user", "Hi")], (tool,))))
    assert "get_weather" in shown
    assert "city" in shown or name in ("no properties", "PHP's empty object")


def test_text_and_thoughts_beside_a_call_are_in_the_prompt_of_a_family_that_takes_one_of_them() -> None:
    called = said("assistant", "say2", reasoning_content="say3", tool_calls=[call(ID, city="say4")])
    shown = prompt("gpt-oss", said("user", "say1"), called, result(ID, "say5"), tools=True)
    assert "<|channel|>analysis<|message|>say3\n\nsay2<|end|>" in shown
    assert all(word in shown for word in ("say1", "say4", "say5"))


def test_ids_are_what_a_family_accepts_and_tell_which_result_is_which() -> None:
    two = CONVERSATIONS["two calls"]
    shown = prompt("mistral-nemo", *two, tools=True)
    first, second = re.findall(r'"id": "([A-Za-z0-9]{9})"', shown)
    assert first != second
    assert f"say4{first}[/TOOL_RESULTS]" in shown
    assert f"say5{second}[/TOOL_RESULTS]" in shown
    own = [
        {**one, "tool_call_id": "abcDEF123"} if one["role"] == "tool" else one
        for one in CONVERSATIONS["a chain of images"]
    ]
    own[1] = said("assistant", None, tool_calls=[call("abcDEF123", city="say2")])
    assert prompt("mistral-nemo", *own, tools=True).count("abcDEF123") == 2  # its own stay
    shown = prompt("kimi-k2", *two, tools=True)
    ids = ["functions.get_weather:0", "functions.get_weather:1"]
    assert re.findall(r"<\|tool_call_begin\|>(.*?)<\|tool_call_arg", shown) == ids
    assert re.findall(r"## Return of (.*)\n(.*?)<", shown) == list(zip(ids, ("say4", "say5"), strict=True))


def test_instructions_that_come_later_stay_where_they_are_or_join_the_user() -> None:
    late = CONVERSATIONS["a later reminder"]
    assert "<|im_start|>system\nsay4<|im_end|>" in prompt("qwen3", *late)
    assert "<|im_start|>user\nsay4\n\nsay5<|im_end|>" in prompt("qwen3.5", *late)
    codex = CONVERSATIONS["Codex"]
    assert "<|im_start|>system\nsay1\n\nsay2\n\nsay3<|im_end|>" in prompt("qwen3.5", *codex)
    assert "<start_of_turn>user\nsay1\n\nsay2\n\nsay3\n\nsay4<end_of_turn>" in prompt("gemma-2", *codex)
    assert "developer<|message|>say1\n\nsay2\n\nsay3<|end|>" in prompt("gpt-oss", *codex)


def test_roles_that_must_alternate_do() -> None:
    shown = prompt("mistral-nemo", *CONVERSATIONS["a chain of images"], tools=True)
    assert re.search(r"say3.{9}\[/TOOL_RESULTS\]OK\.", shown)
    assert "[INST]say2\n\nsay3[/INST]" in prompt("mistral-nemo", said("user", "say2"), said("user", "say3"))


@pytest.mark.parametrize("family", FAMILIES)
def test_tools_are_in_the_prompt_or_the_operator_is_told(family: str) -> None:
    found = templates(family)
    assert bool(found.notes) is (family in WITHOUT_TOOLS)
    if family not in WITHOUT_TOOLS:
        shown = prompt(family, said("user", "Hi"), tools=True)
        assert "get_weather" in shown
        assert "city" in shown
    assert "null" not in prompt(family, said("user", "Hi"))
    assert "None" not in prompt(family, said("user", "Hi"))


def test_tools_go_where_a_family_reads_them() -> None:
    shown = prompt("phi-4-mini", said("system", "say1"), said("user", "say2"), tools=True)
    functions = re.search(r"<\|system\|>say1<\|tool\|>(.*)<\|/tool\|>", shown)
    assert functions
    assert json.loads(functions[1]) == [WEATHER["function"]]
    assert "<tools>" in prompt("smollm3", said("user", "Hi"), tools=True)


def test_named_templates_are_chosen_by_the_request() -> None:
    assert "You have these functions" in prompt("hermes-3", said("user", "Hi"), tools=True)
    assert prompt("hermes-3", said("user", "Hi")) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    documents = [{"title": "Oslo", "text": "is cold"}]
    assert prompt("hermes-3", said("user", "Hi"), documents=documents).startswith("Oslo: is cold")


def test_a_template_that_tests_whether_tools_are_defined_is_used_without_them() -> None:
    tokenizer = make_tokenizer([])
    alone = ChatTemplates.of(tokenizer, FAMILIES["hermes-3"]["tool_use"])
    use = alone.choose(tools=False)
    shown = use.render([said("user", "Hi")], {})
    assert "You have these functions" not in shown
    assert "Hi" in shown


def test_a_developer_is_never_lost() -> None:
    for family in FAMILIES:
        shown = prompt(family, said("developer", "say1"), said("user", "say2"))
        assert "say1" in shown
        assert ("<|im_start|>developer" in shown) is False


THINKS = {"ernie-4.5", "exaone-4", "gpt-oss", "ministral-3", "qwen3", "qwen3.5"}


@pytest.mark.parametrize("family", FAMILIES)
def test_thoughts_of_earlier_rounds_are_shown_by_templates_that_have_them(family: str) -> None:
    messages = CONVERSATIONS["the server's own call, sent back"]
    messages = [messages[0], {**messages[1], "reasoning_content": "plan1"}, messages[2]]
    assert ("plan1" in prompt(family, *messages, tools=family not in WITHOUT_TOOLS)) is (family in THINKS)


SWITCHED = {
    "qwen3": ({}, {"enable_thinking": False}, "</think>"),
    "smollm3": ({"enable_thinking": True}, {"enable_thinking": False}, "/no_think"),
    "deepseek-v3.1": ({"enable_thinking": True}, {"enable_thinking": False}, "<Assistant></think>"),
    "gpt-oss": ({"reasoning_effort": "xhigh"}, {"enable_thinking": False}, "Reasoning: low"),
}  # fmt: skip


@pytest.mark.parametrize("family", SWITCHED)
def test_thinking_is_switched_by_the_variable_that_the_template_has(family: str) -> None:
    on, off, mark = SWITCHED[family]
    assert mark not in prompt(family, said("user", "Hi"), **on)
    assert mark in prompt(family, said("user", "Hi"), **off)
    traits = templates(family).choose(tools=False).traits
    assert unused_options({**on, **off}, traits) == ()


def test_a_level_of_effort_that_a_model_does_not_know_becomes_the_nearest() -> None:
    shown = {
        effort: re.findall(r"Reasoning: (\w+)", prompt("gpt-oss", said("user", "Hi"), reasoning_effort=effort))[0]
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", "enormous")
    }
    assert shown == {
        "none": "low", "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high",
        "max": "high", "enormous": "enormous",
    }  # fmt: skip


def test_a_template_that_thinks_only_at_a_level_gets_one_when_thoughts_are_asked_for() -> None:
    tokenizer = make_tokenizer([])
    use = ChatTemplates.of(
        tokenizer,
        "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'no_think' %}"
        "{% elif reasoning_effort not in ['low', 'high'] %}{{ raise_exception('unknown') }}{% endif %}"
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{{ reasoning_effort + '\n' }}"
        "{{ '<think></think>' if reasoning_effort == 'no_think' else '<think>' }}",
    ).choose(tools=False)
    shown = {
        (name, value): use.render([said("user", "Hi")], template_variables({name: value}, use.traits)).split("\n")[-2]
        for name, value in (
            ("enable_thinking", True), ("enable_thinking", False), ("reasoning_effort", "none"),
            ("reasoning_effort", "medium"), ("other", 1),
        )
    }  # fmt: skip
    assert list(shown.values()) == ["high", "no_think", "no_think", "low", "no_think"]


def test_options_that_a_template_does_not_have_are_named() -> None:
    traits = templates("lfm2").choose(tools=False).traits
    options = {"enable_thinking": True, "reasoning_effort": "low", "think": 1, "tools": 1}
    assert unused_options(options, traits) == ("enable_thinking", "reasoning_effort", "think")
    assert template_variables(options, traits) == options
    assert asks_to_think(options) == ("enable_thinking", "reasoning_effort")
    assert asks_to_think({"reasoning_effort": "none", "enable_thinking": False}) == ()
