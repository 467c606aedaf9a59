"""What `darkroom clients` prints is what each program reads."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from server.cli.clients import CLIENTS, SHELL, WORDS, Client, Step, fill, values_of

VALUES = values_of("https://darkroom.example/x", "sk-1", "qwen/coder:7b", 32_768, "gpt-image-1")
READERS: dict[str, Callable[[str], Any]] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
STEPS = [pytest.param(step, id=f"{name}, {step.place}") for name in CLIENTS for step in CLIENTS[name].steps]


def read(name: str) -> Any:
    """Return the content of a program's file, or its variables."""
    step = CLIENTS[name].steps[0]
    text = fill(step.text, VALUES)
    return variables(text) if step.place == SHELL else READERS[step.language](text)


def variables(text: str) -> dict[str, str]:
    lines = [shlex.split(line) for line in text.splitlines()]
    return dict(word.split("=", 1) for line in lines if line[0] == "export" for word in line[1:])


@pytest.mark.parametrize("step", STEPS)
def test_a_text_is_of_its_language_with_a_value_for_each_word(step: Step) -> None:
    text = fill(step.text, VALUES)
    assert not WORDS.search(text)
    if step.language in READERS:
        assert READERS[step.language](text)


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_every_program_gets_the_address_the_key_and_the_model(client: Client) -> None:
    assert client.words >= {"ADDRESS", "KEY"}
    assert client.words & {"MODEL", "IMAGES"}


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("claude-code", ["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], "32768"),
        ("claude-code", ["CLAUDE_CODE_MAX_OUTPUT_TOKENS"], "8192"),
        ("codex", ["model_context_window"], 32_768),
        ("codex", ["model_auto_compact_token_limit"], 29_491),
        ("gemini-cli", ["model", "compressionThreshold"], 0.01641),  # of 2**20: 17,207 of the 24,576 for messages
        ("qwen-code", ["modelProviders", "openai", 0, "generationConfig", "contextWindowSize"], 32_768),
        ("opencode", ["provider", "darkroom", "models", "qwen/coder:7b", "limit", "context"], 32_768),
        ("pi", ["providers", "darkroom", "models", 0, "contextWindow"], 32_768),
        ("cline", ["providers", "openai-compatible", "settings", "contextWindow"], 32_768),
        ("continue", ["models", 0, "defaultCompletionOptions", "contextLength"], 32_768),
        ("copilot", ["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"], "24576"),
        ("aider", ["openai/qwen/coder:7b", "max_input_tokens"], 24_576),
        ("aider", ["openai/qwen/coder:7b", "litellm_provider"], "openai"),  # else it does not find the entry
        ("librechat", ["modelSpecs", "list", 0, "preset", "maxContextTokens"], 32_768),
    ],
)
def test_an_agent_is_told_the_context(name: str, path: list[str | int], expected: object) -> None:
    found = read(name)
    for key in path:
        found = found[key]
    assert found == expected


def test_an_answer_has_no_more_than_agents_ask_for() -> None:
    assert values_of("", "", "", 1_000_000, "")["ANSWER"] == "32000"


@pytest.mark.parametrize(
    ("context", "limit"), [(32_768, 29_491), (40_000, 36_000), (65_536, 49_152), (200_000, 168_000)]
)
def test_codex_shortens_where_what_it_keeps_fits(context: int, limit: int) -> None:
    assert values_of("", "", "", context, "")["SHORTEN"] == str(limit)


def test_without_a_context_only_texts_that_do_not_tell_it_have_their_values() -> None:
    values = values_of("https://darkroom.example", "sk-1", "small", None, "gpt-image-1")
    told = [name for name, client in CLIENTS.items() if not client.words - values.keys()]
    assert told == ["open-webui", "n8n", "openai-sdk"]


def test_words_are_no_part_of_longer_names() -> None:
    assert fill("OPENAI_MODEL=MODEL KEYS KEY", {"MODEL": "m", "KEY": "k"}) == "OPENAI_MODEL=m KEYS k"


def test_every_name_is_one_that_a_shell_takes_as_it_is() -> None:
    assert [name for name in CLIENTS if not re.fullmatch(r"[a-z0-9-]+", name)] == []
