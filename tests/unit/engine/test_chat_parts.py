"""Detokenizer, stop strings, output parser and sampling: nothing is lost or shown too early, wherever chunks end."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from pipelines.chat.grammars.constraints import path_to_end
from pipelines.chat.steps.detokenize import Detokenizer, StopFilter
from pipelines.chat.steps.sampling import SamplerState, sample
from pipelines.chat.syntax.calls import CallFormat
from pipelines.chat.syntax.families import BARE, HERMES
from pipelines.chat.syntax.output_parser import OutputParser
from pipelines.chat.syntax.output_syntax import OutputSyntax
from pipelines.chat.syntax.tokens import TokenTable
from pipelines.protocol.chat import ChatSampling, ReasoningDelta, TextDelta, ToolCallDelta
from starters.chat.tokens import make_tokenizer

TOKENIZER = make_tokenizer([])
TABLE = TokenTable(TOKENIZER, [TOKENIZER.eos_token_id])
ARGUMENTS = '{"city": "K\\"ö}ln", "days": [1, {"a": 2}]}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"
THINKING = "{% if enable_thinking %}<think></think>{% endif %}<tool_call>"


@given(st.text())
def test_every_character_comes_out_whole(text: str) -> None:
    detokenizer = Detokenizer(TABLE, frozenset(TABLE.special))
    ids = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)
    pieces = [detokenizer.feed(token) for token in ids]
    assert "".join(pieces) + detokenizer.flush() == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_a_character_that_is_never_completed_is_shown_as_such() -> None:
    detokenizer = Detokenizer(TABLE, frozenset())
    first = TOKENIZER.encode("é", add_special_tokens=False)[0]
    assert (detokenizer.feed(first), detokenizer.flush()) == ("", "\ufffd")


@given(st.lists(st.text("abc", max_size=3)), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4))
def test_text_before_the_first_stop_string_is_shown_and_nothing_of_it(parts: list[str], stops: list[str]) -> None:
    text = "".join(parts)
    stop_filter = StopFilter(tuple(stops))
    shown = ""
    for part in parts:
        shown += stop_filter.feed(part)
        assert not any(stop in shown for stop in stops)
    shown += stop_filter.flush()
    matches = [text.find(stop) for stop in stops if stop in text]
    assert (stop_filter.matched in stops) if matches else (stop_filter.matched is None)
    if matches:
        # which of several stop strings is met first depends on where the parts end; none is ever shown
        assert text.startswith(shown)
        assert len(shown) >= min(matches)
    else:
        assert shown == text


def test_text_that_may_become_a_stop_string_is_held_back() -> None:
    stop_filter = StopFilter(("END", "\n\n"))
    assert [stop_filter.feed(part) for part in ("a E", "N", "X\n", "b\n", "\nc")] == ["a ", "", "ENX", "\nb", ""]
    assert stop_filter.matched == "\n\n"


def parse(text: str, size: int, form: CallFormat = HERMES, prefix: str = "") -> list[Any]:
    plain = make_tokenizer([])
    plain.response_template = None
    syntax = OutputSyntax.of(plain, THINKING, chosen="hermes" if form is HERMES else "json")
    parser = OutputParser(syntax.fields, prefix, call_format=form)
    pieces = [piece for start in range(0, len(text), size) for piece in parser.feed(text[start : start + size])]
    return pieces + parser.flush()


def joined(pieces: list[Any]) -> tuple[str, str, list[tuple[str | None, str]]]:
    """Reasoning, text, and calls."""
    calls: dict[int, tuple[str | None, str]] = {}
    for piece in pieces:
        if isinstance(piece, ToolCallDelta):
            name, arguments = calls.get(piece.index, (None, ""))
            calls[piece.index] = (piece.name or name, arguments + piece.arguments)
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningDelta))
    return reasoning, "".join(piece.text for piece in pieces if isinstance(piece, TextDelta)), list(calls.values())


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_reasoning_text_and_calls_are_separated(size: int) -> None:
    text = f"<think>\nHm, {{so}}.\n</think>\n\nI will look.\n{CALL}\n{CALL}\n"
    call = ("get_weather", ARGUMENTS)
    assert joined(parse(text, size)) == ("Hm, {so}.", "I will look.", [call, call])


def test_arguments_come_piece_by_piece_behind_an_id_and_a_name() -> None:
    pieces = [piece for piece in parse(CALL, 3) if isinstance(piece, ToolCallDelta)]
    assert pieces[0].name == "get_weather"
    assert str(pieces[0].call_id).startswith("call_")
    assert all(piece.name is None and piece.call_id is None for piece in pieces[1:])
    assert len(pieces) > 5


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('{"name": "f", "parameters": {"x": 1}}', ("f", '{"x": 1}')),
        ('{"parameters": {"x": 1}, "name": "f"}', ("f", '{"x": 1}')),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', ("f", '{"x": 1}')),
        ('<|python_tag|>{"name": "f", "parameters": {}}', ("f", "{}")),
    ],
)
def test_bare_json_is_a_call(text: str, call: tuple[str, str]) -> None:
    assert joined(parse(text, 4, BARE)) == ("", "", [call])


@pytest.mark.parametrize("text", ['{"no": "call"}', "{not json", "Hello {there}", "2 < 3 </think"])
def test_what_is_no_call_is_text(text: str) -> None:
    assert joined(parse(text, 1, BARE)) == ("", text, [])


def test_a_call_that_was_cut_short_keeps_what_came() -> None:
    _, answer, calls = joined(parse(CALL[: CALL.index("[1")], 5))
    assert answer == ""
    assert calls == [("get_weather", ARGUMENTS[: ARGUMENTS.index("[1")])]


def test_an_answer_may_begin_inside_the_reasoning() -> None:
    assert joined(parse("so.</think>Yes.", 2, HERMES, "<think>\n")) == ("so.", "Yes.", [])


def test_a_tokenizers_own_response_template_parses_what_its_chat_template_writes() -> None:
    syntax = OutputSyntax.of(TOKENIZER, TOKENIZER.chat_template)
    assert syntax.calls == HERMES
    question: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    prompt = TOKENIZER.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    function = {"name": "get_weather", "arguments": json.loads(ARGUMENTS)}
    message = {"role": "assistant", "content": "Well.", "tool_calls": [{"type": "function", "function": function}]}
    conversation = TOKENIZER.apply_chat_template([*question, message], tokenize=False)
    parser = OutputParser(syntax.fields, prompt, call_format=syntax.calls, anchor=syntax.anchor)
    pieces = parser.feed(conversation.removeprefix(prompt).removesuffix("<|im_end|>\n")) + parser.flush()
    _, answer, calls = joined(pieces)
    assert answer == "Well."
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("get_weather", json.loads(ARGUMENTS))]


LOGITS = torch.tensor([[1.0, 3.0, 2.0, 0.0]])


def sample_tokens(sampling: ChatSampling, times: int = 300, seed: int = 0) -> list[int]:
    row = SamplerState(sampling, seed)
    return [sample(LOGITS.clone(), [row], [None])[0].token for _ in range(times)]


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    tokens = sample_tokens(ChatSampling(temperature=0.5), times=4000)
    for token, share in enumerate(torch.softmax(LOGITS[0] / 0.5, dim=0).tolist()):
        assert tokens.count(token) / 4000 == pytest.approx(share, abs=0.03)


def test_top_p_keeps_the_fewest_likeliest_tokens_that_reach_it() -> None:
    assert set(sample_tokens(ChatSampling(top_p=0.7))) == {1, 2}
    assert set(sample_tokens(ChatSampling(top_p=0.0))) == {1}


def test_bias_and_penalties_change_what_comes() -> None:
    assert set(sample_tokens(ChatSampling(temperature=0.0, logit_bias={3: 100.0}))) == {3}
    assert sample_tokens(ChatSampling(temperature=0.0, presence_penalty=1.5), times=4) == [1, 2, 1, 1]
    assert sample_tokens(ChatSampling(temperature=0.0, frequency_penalty=0.8), times=4) == [1, 1, 2, 1]


def test_a_seed_decides_and_neighbours_do_not() -> None:
    sampling = ChatSampling(temperature=1.0, top_p=0.95)
    rows = [SamplerState(sampling, seed) for seed in range(5)]
    batched = [[each.token for each in sample(LOGITS.repeat(5, 1), rows, [None] * 5)] for _ in range(50)]
    for seed in range(5):
        assert [tokens[seed] for tokens in batched] == sample_tokens(sampling, times=50, seed=seed)


def test_logprobs_are_the_models_own() -> None:
    row = SamplerState(ChatSampling(temperature=2.0, logit_bias={0: 100.0}), 0, top_logprobs=2)
    (sampled,) = sample(LOGITS.clone(), [row], [None])
    logprobs = torch.log_softmax(LOGITS[0], dim=0)
    assert sampled.token == 0
    assert sampled.logprob == pytest.approx(float(logprobs[0]))
    assert [token for token, _ in sampled.top] == [1, 2]


def drawn(options: dict[str, Any], prompt: frozenset[int] = frozenset(), tries: int = 200) -> set[int]:
    """The tokens that are sampled of five, whose logits are 4, 3, 2, 1 and 0."""
    rows = [SamplerState(ChatSampling(**options), seed, prompt_tokens=prompt) for seed in range(tries)]
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.0]]).repeat(tries, 1)
    return {one.token for one in sample(logits, rows, [None] * tries)}


def test_top_k_and_min_p_leave_out_unlikely_tokens() -> None:
    assert drawn({"temperature": 3.0}) == {0, 1, 2, 3, 4}
    assert drawn({"temperature": 3.0, "top_k": 2}) == {0, 1}
    assert drawn({"temperature": 3.0, "top_k": 99}) == {0, 1, 2, 3, 4}
    # exp(-(4 - x) / 3) of 0.5 is between the second token (0.72) and the third (0.51) and the fourth (0.37)
    assert drawn({"temperature": 3.0, "min_p": 0.5}) == {0, 1, 2}
    assert drawn({"temperature": 3.0, "min_p": 1.0}) == {0}


def test_a_repetition_penalty_is_for_tokens_of_the_prompt_and_of_the_answer() -> None:
    greedy = {"temperature": 0.0, "repetition_penalty": 1.5}
    assert drawn(greedy, tries=1) == {0}
    assert drawn(greedy, frozenset({0}), tries=1) == {1}  # 4 / 1.5 < 3
    row = SamplerState(ChatSampling(**greedy), 0)
    logits = [4.0, 3.0, -1.0]
    chosen = [sample(torch.tensor([logits]), [row], [None])[0].token for _ in range(3)]
    assert chosen == [0, 1, 0]


@pytest.mark.parametrize(
    "schema",
    [
        *({"type": "string", "format": name} for name in (
            "email", "uri", "duration", "time", "date", "date-time", "ipv4", "ipv6", "hostname", "uuid",
        )),
        *({"type": "string", "pattern": pattern} for pattern in (
            r"^[a-z]{2,5}@x\.(de|com)$", r"^#[0-9a-f]{6}$", r"^\+?[0-9 ()-]{5,}$", "^[A-Z]{3}-[0-9]{4}$",
        )),
        {"type": "integer", "multipleOf": 7, "minimum": 15},
    ],
)  # fmt: skip
def test_a_value_of_any_format_closes_soon(schema: dict[str, Any]) -> None:
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    rule = f"start: %json {json.dumps(whole)}"
    matcher = LLMatcher(TABLE.grammar, json.dumps({"grammars": [{"lark_grammar": rule}]}))
    path = path_to_end(TABLE.grammar, matcher, [])
    assert path is not None
    assert len(path) <= 48
    Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(
        json.loads(TABLE.grammar.decode_bytes(path))
    )
