"""Whole conversations: sometimes a system message, sometimes tools, then some turns."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from starters.chat.conversations.image_requests import Canvas, Tool, ask_change, ask_image, sample_tool
from starters.chat.conversations.script import Script
from starters.chat.conversations.small_talk import arithmetic, introduce, repeat_back, small_talk, unknown
from starters.chat.conversations.tool_calls import Declared, ask_without_function, call_function, declare
from starters.chat.conversations.words import chance, phrase, pick
from starters.world.split import Split

SYSTEM: Final = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are starter-chat.", "Be brief.",
    "Answer in English.",
    "You are an assistant that can draw.", "You can call tools.", "Use the tools when they help.",
    "You are a friendly chatbot.",
    "You are a helpful AI assistant. Answer the user's questions.", "Today is Monday.", "Be kind and precise.",
    "You are the assistant of an online shop.", "Help the user.",
)  # fmt: skip
TURNS: Final = ("picture", "change", "function", "say", "sum", "chat", "unknown", "meet")
TURN_WEIGHTS: Final = (0.21, 0.2, 0.28, 0.08, 0.07, 0.09, 0.05, 0.02)


def conversation(rng: np.random.Generator, split: Split = "train", *, max_turns: int = 4) -> Script:
    script = Script(rng, split)
    if chance(rng, 0.35):
        script.system(pick(rng, SYSTEM) if chance(rng, 0.75) else f"{phrase(rng, 6)}.")
    tool = sample_tool(rng) if chance(rng, 0.55) else None
    functions = _functions(rng, taken=tool)
    declared = [function.schema for function in functions]
    if tool is not None:
        declared.insert(int(rng.integers(len(declared) + 1)), tool.schema)
    script.tools = declared
    canvas = Canvas()
    for _ in range(1 + int(rng.integers(max_turns))):
        _turn(script, tool, functions, canvas)
    return script


def conversations(seed: int, split: Split = "train") -> Iterator[Script]:
    """An endless stream of conversations, the same for the same seed."""
    rng = np.random.default_rng(seed)
    while True:
        yield conversation(rng, split)


def _functions(rng: np.random.Generator, taken: Tool | None) -> list[Declared]:
    names = set() if taken is None else {taken.name}
    functions: list[Declared] = []
    for _ in range(int(rng.choice(4, p=(0.5, 0.28, 0.15, 0.07)))):
        function = declare(rng)
        known = {id(other.source) for other in functions if other.source is not None}
        if function.name not in names and id(function.source) not in known:
            names.add(function.name)
            functions.append(function)
    return functions


def _turn(script: Script, tool: Tool | None, functions: list[Declared], canvas: Canvas) -> None:
    weights = np.array(TURN_WEIGHTS)
    if not functions:
        weights[2] = 0
    if any(function.counts for function in functions):
        weights[4] = 0  # then sums are for the function
    if tool is None:
        weights[:2] *= 0.3
    weights[1 if not canvas.drawn else 0] *= 0.3
    match TURNS[int(script.rng.choice(len(TURNS), p=weights / weights.sum()))]:
        case "picture":
            ask_image(script, tool, canvas)
        case "change":
            ask_change(script, tool, canvas)
        case "function":
            call_function(script, functions)
        case "say":
            repeat_back(script)
        case "sum":
            arithmetic(script)
        case "chat":
            small_talk(script)
        case "unknown":
            ask_without_function(script, functions) if chance(script.rng, 0.25) else unknown(script)
        case _:
            introduce(script)
