"""What the shipped starter-chat gets right, in wordings and scenes that training never saw. Floors, not aims."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipelines.protocol.image_tool import IMAGE_TOOL
from starters.chat.measure import Figures, measure

FOLDER = Path(__file__).parents[2] / "weights" / "starter-chat"
LARGEST_BYTES = 8_000_000
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look up the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
Messages = list[dict[str, Any]]


COUNT = 640  # conversations; with fewer, chance decides over a call or two
pytestmark = pytest.mark.timeout(1800)  # measuring takes minutes on a busy machine


@pytest.fixture(scope="module")
def measured() -> Figures:
    return measure(FOLDER, count=COUNT)


def test_the_folder_is_small_and_in_half_precision() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*")) <= LARGEST_BYTES
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"F16"}  # noqa: SIM118


@pytest.mark.nightly  # the checkpoint is frozen, and the engine's own tests see whether it is read rightly
@pytest.mark.parametrize(
    ("figure", "floor"),
    [
        ("tool_calls", 0.97),
        ("arguments", 0.7),
        ("follow_ups", 0.85),
        ("without_tool", 0.95),
        ("no_needless_call", 0.92),
        ("ended", 0.97),
    ],
)
def test_it_is_as_good_as_its_card_says(measured: Figures, figure: str, floor: float) -> None:
    assert getattr(measured, figure) >= floor


def test_it_draws_what_it_is_asked_and_then_changes_it() -> None:
    talk: Messages = [{"role": "user", "content": "Draw a red boat at sea at sunset"}]
    drawn = answer(talk, [IMAGE_TOOL])
    assert called(drawn) == [("image_generation", {"prompt": "a red boat at sea at sunset", "action": "generate"})]
    talk += [drawn, {"role": "tool", "content": "done"}]
    told = answer(talk, [IMAGE_TOOL])
    assert not called(told)
    assert told["content"]
    talk += [told, {"role": "user", "content": "now at night"}]
    assert called(answer(talk, [IMAGE_TOOL])) == [("image_generation", {"prompt": "at night", "action": "edit"})]


def test_without_the_tool_it_answers_in_words() -> None:
    said = answer([{"role": "user", "content": "Draw a red boat at sea at sunset"}], [])
    assert not called(said)
    assert "image tool" in said["content"]


def test_it_calls_a_function_of_the_user() -> None:
    said = answer([{"role": "user", "content": "What is the weather in Paris?"}], [WEATHER])
    assert called(said) == [("get_weather", {"city": "Paris"})]


@pytest.mark.parametrize(
    ("question", "expected"), [("Hello", "Hello"), ("What is Darkroom?", "server"), ("What can you do?", "image tool")]
)
def test_it_greets_and_explains(question: str, expected: str) -> None:
    said = answer([{"role": "user", "content": question}], [])
    assert expected in said["content"]


def answer(messages: Messages, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The checkpoint's next message, greedily."""
    tokenizer, model = AutoTokenizer.from_pretrained(FOLDER), AutoModelForCausalLM.from_pretrained(FOLDER)
    options = {"tools": tools or None, "add_generation_prompt": True}
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        output = model.float().generate(**inputs, max_new_tokens=120, do_sample=False)
    reply: dict[str, Any] = tokenizer.parse_response(
        tokenizer.decode(output[0, inputs["input_ids"].shape[1] :]), prefix=text
    )
    return reply


def called(message: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The names and arguments of a message's calls."""
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
