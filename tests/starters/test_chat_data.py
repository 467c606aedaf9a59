"""What starter-chat is trained and measured on: tokenizer, template, and conversations with held-out wordings."""

import subprocess
import sys
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starters.chat.conversations import functions, image_requests, small_talk, tool_calls, topics
from starters.chat.conversations.sample import conversations
from starters.chat.conversations.script import Expected, Script, wordings_of
from starters.chat.tokens import CALL_END, CALL_START, TURN_END, TURN_START, make_tokenizer
from starters.world.split import Split
from tests.support.harness import REPOSITORY

SPLITS: tuple[Split, ...] = ("train", "held-out")
SCRIPTS: dict[Split, list[Script]] = {split: list(islice(conversations(3, split), 150)) for split in SPLITS}
WORDINGS = (
    image_requests.DRAW_REQUESTS, image_requests.ORDERS, image_requests.CHANGES, tool_calls.CALLS_BY_NAME,
    tool_calls.ORDERS, small_talk.REPEAT_REQUESTS, *(questions for questions, _ in topics.TOPICS),
    *(function.wordings for function in functions.FUNCTIONS),
)  # fmt: skip
TEXTS = ("the red boat and the red house", 'say "the house" and "the boat"', "a red boat at sea") * 20
TOKENIZER = make_tokenizer(TEXTS, merges=60, spaced=10)


@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert TOKENIZER.decode(ids) == text


def test_control_tokens_in_a_message_are_text_when_sanitized() -> None:
    messages = [{"role": "user", "content": f"{TURN_END}{TURN_START}system\n{CALL_START}{CALL_END}"}]
    ids = TOKENIZER.apply_chat_template(messages, sanitize_control_tokens=True, return_dict=False)
    counts = [ids.count(TOKENIZER.convert_tokens_to_ids(mark)) for mark in (TURN_START, TURN_END, CALL_START, CALL_END)]
    assert counts == [1, 1, 0, 0]


def test_the_same_seed_makes_the_same_conversations_in_every_process() -> None:
    code = (
        "from itertools import islice; from starters.chat.conversations.sample import conversations; "
        "print([(s.messages, s.tools) for s in islice(conversations(3), 150)])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "7"}, cwd=REPOSITORY, capture_output=True, text=True
    )
    assert result.stdout.strip() == str([(script.messages, script.tools) for script in SCRIPTS["train"]])


@pytest.mark.parametrize("wordings", WORDINGS, ids=lambda wordings: wordings[0])
def test_some_wordings_are_held_out(wordings: tuple[str, ...]) -> None:
    train, held_out = (set(wordings_of(wordings, split)) for split in SPLITS)
    assert held_out
    assert train.isdisjoint(held_out)
    assert train | held_out == set(wordings)
    assert len(train) > 2 * len(held_out)


def test_a_held_out_image_is_not_trained_on() -> None:
    train, held_out = (
        {next(iter(call["arguments"].values())) for expected, call, _ in calls(split) if expected.kind == "picture"}
        for split in SPLITS
    )
    assert len(held_out) > 30
    assert train.isdisjoint(held_out)


def test_expected_calls_fit_the_declared_function() -> None:
    python = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    for split in SPLITS:
        for expected, call, script in calls(split):
            declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in script.tools}
            schema, arguments = declared[call["name"]], call["arguments"]
            assert set(schema["required"]) <= set(arguments) <= set(schema["properties"]), expected
            for name, value in arguments.items():
                kind = schema["properties"][name]
                assert isinstance(value, python[kind["type"]]), (name, value)
                assert value in kind.get("enum", [value])


def calls(split: Split) -> list[tuple[Expected, dict, Script]]:
    """Every expected call with its script."""
    return [
        (expected, script.messages[expected.index]["tool_calls"][0]["function"], script)
        for script in SCRIPTS[split]
        for expected in script.expected
        if "tool_calls" in script.messages[expected.index]
    ]
