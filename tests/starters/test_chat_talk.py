"""The conversations that the chat starter learns from are what they claim to be."""

import json
import re
from itertools import islice

import numpy as np
import pytest

from starters.chat.talk import calling, chatter, functions, pictures, topics
from starters.chat.talk.mix import conversations
from starters.chat.talk.script import Expected, Script, wordings_of
from starters.world.split import Split

SPLITS: tuple[Split, ...] = ("train", "held-out")
TALKS: dict[Split, list[Script]] = {split: list(islice(conversations(3, split), 150)) for split in SPLITS}
ALL = [script for scripts in TALKS.values() for script in scripts]
WORDINGS = (
    pictures.ASKS, pictures.ORDERS, pictures.WISHES, pictures.NEXT_ASKS, pictures.CHANGES, pictures.PLAIN_CHANGES,
    calling.NAMED, calling.PAIRS, calling.DOINGS, calling.SIMPLE_DOINGS, calling.MANNERS, chatter.SAYINGS,
    chatter.UNKNOWN_ASKS, *chatter.SUMS.values(), *(asks for asks, _ in topics.TOPICS),
    *(function.wordings for function in functions.FUNCTIONS),
)  # fmt: skip


def test_the_same_seed_makes_the_same_conversations() -> None:
    again = list(islice(conversations(3), 5))
    assert [script.messages for script in again] == [script.messages for script in TALKS["train"][:5]]


@pytest.mark.parametrize("wordings", WORDINGS, ids=lambda wordings: wordings[0])
def test_some_of_the_wordings_are_kept_from_training(wordings: tuple[str, ...]) -> None:
    train, held_out = (set(wordings_of(wordings, split)) for split in SPLITS)
    assert held_out
    assert train.isdisjoint(held_out)
    assert train | held_out == set(wordings)
    assert len(train) > 2 * len(held_out)


def test_words_are_made_up_in_training_alone_and_no_gap_is_lost() -> None:
    wordings = ("Send {} the message {text}", "could you say {}?", "{}", "I'd {verb} it")
    said: dict[Split, set[str]] = {}
    for split in SPLITS:
        script = Script(np.random.default_rng(1), split)
        said[split] = {script.strange_wording(wordings) for _ in range(200)}
    assert said["held-out"] < set(wordings)
    strange = said["train"] - set(wordings)
    assert len(strange) > 10
    for wording in strange:
        likely = [known for known in wordings if len(known.split()) == len(wording.split())]
        known = max(likely, key=lambda known: sum(map(str.__eq__, known.split(), wording.split())))
        assert re.findall(r"{\w*}", wording) == re.findall(r"{\w*}", known)
        assert sum(map(str.__ne__, known.split(), wording.split())) == 1


def test_the_assistant_has_the_last_word_and_answers_every_message() -> None:
    for script in ALL:
        assert script.messages[-1]["role"] == "assistant"
        for before, after in zip(script.messages, script.messages[1:], strict=False):
            if before["role"] in ("user", "tool"):
                assert after["role"] == "assistant"
        answered = [i for i, message in enumerate(script.messages) if message["role"] == "assistant"]
        assert [expected.index for expected in script.expected] == answered


def test_calls_fit_the_function_that_is_declared() -> None:
    python = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    for script, expected, function in calls():
        declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in script.tools}
        schema = declared[function["name"]]
        arguments = function["arguments"]
        assert set(schema["required"]) <= set(arguments) <= set(schema["properties"]), expected
        for name, value in arguments.items():
            kind = schema["properties"][name]
            assert isinstance(value, python[kind["type"]]), (name, value)
            assert value in kind.get("enum", [value])


def test_arguments_stand_in_the_message() -> None:
    for script, expected, function in calls():
        if expected.kind == "edit":
            continue  # "it" becomes the thing's name
        message = script.messages[expected.index - 1]["content"]
        for value in function["arguments"].values():
            if not isinstance(value, bool) and value not in ("generate", "edit"):
                assert str(value).lower() in message.lower()


def test_a_picture_of_a_held_out_conversation_was_not_trained_on() -> None:
    prompts = {split: set(prompts_of(split)) for split in SPLITS}
    assert len(prompts["held-out"]) > 30
    assert prompts["train"].isdisjoint(prompts["held-out"])


def test_a_change_is_an_instruction_without_manners() -> None:
    edits = [function["arguments"] for _, expected, function in calls() if expected.kind == "edit"]
    texts = [next(iter(arguments.values())) for arguments in edits]
    assert len(texts) > 50
    assert not [text for text in texts if "please" in text.lower() or text.startswith(("can you", "could you", "it "))]


def test_nothing_is_called_that_is_not_there() -> None:
    for script in ALL:
        names = {tool["function"]["name"] for tool in script.tools}
        assert len(names) == len(script.tools)
        used = {call["function"]["name"] for m in script.messages for call in m.get("tool_calls", ())}
        assert used <= names


def test_results_are_told_as_they_are() -> None:
    for script in ALL:
        for expected in script.expected:
            result = script.messages[expected.index - 1]
            if expected.kind == "result" and result["content"].startswith("{") and "Result" in expected.texts[0]:
                for value in json.loads(result["content"]).values():
                    assert str(value) in expected.texts[0]


def calls() -> list[tuple[Script, Expected, dict[str, dict[str, object]]]]:
    """Every call of every conversation."""
    return [
        (script, expected, script.messages[expected.index]["tool_calls"][0]["function"])
        for script in ALL
        for expected in script.expected
        if "tool_calls" in script.messages[expected.index]
    ]


def prompts_of(split: Split) -> list[str]:
    """The prompts of new pictures."""
    return [
        next(iter(script.messages[e.index]["tool_calls"][0]["function"]["arguments"].values()))
        for script in TALKS[split]
        for e in script.expected
        if e.kind == "picture"
    ]
