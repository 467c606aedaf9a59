"""Grammars for constrained decoding with llguidance: JSON of a schema, tool calls, or text with calls in it.

They begin where the prompt ends, so thoughts are a part of them: what is written there is free, and what comes behind
them is not. The input of a tool with a grammar of its own is written as it is, not as a JSON string: {"input": and then
what that grammar allows, up to the end of the call.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from llguidance import LLMatcher

from pipelines.chat.failures import InvalidRequest
from pipelines.chat.grammars.enforceable import WIDEST, enforceable
from pipelines.chat.syntax import harmony
from pipelines.chat.syntax.call_rules import CallableTool, CallRules
from pipelines.chat.syntax.families import BARE
from pipelines.chat.syntax.output_syntax import OutputSyntax, ThoughtState
from pipelines.chat.syntax.rules import Rules
from pipelines.chat.syntax.schemas import tighten, tighten_parameters
from pipelines.chat.syntax.tokens import TokenTable
from pipelines.protocol.chat import ChatJob
from pipelines.protocol.images import Failed

JSON_STYLE: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}  # as json.dumps writes
EXCERPT: Final = re.compile(r"^ *\d+ \|", re.MULTILINE)  # of the grammar, in the library's messages


@dataclass(frozen=True, slots=True)
class Grammar:
    text: str
    endings: tuple[str, ...] = ()  # texts that end thoughts, strings without quotes, and lists of calls
    unenforced: tuple[str, ...] = ()  # paths of the keywords of tools' schemas that it does not enforce


def has_structured_output(job: ChatJob) -> bool:
    """Return whether a grammar says what the whole answer is: a value or calls, and not text."""
    return job.format is not None or (bool(job.tools) and job.tool_choice == "required")


def build_grammar(
    table: TokenTable, job: ChatJob, syntax: OutputSyntax, thoughts: ThoughtState, *, any_arguments: bool = False
) -> Grammar | None:
    """Return the grammar of output behind a prompt that ends in these thoughts; None for one that is unconstrained.

    With `any_arguments`, only strict tools' schemas are part of it. Calls of a syntax without a grammar are not
    constrained unless they are required. Raises InvalidRequest, naming what can't be enforced.
    """
    schema = None if job.format is None else tighten(job.format.schema or {"type": "object"}, job.checkpoint.max_string)
    if schema is not None:
        _check(table, _lark(f"start: {_json(schema)}"), "response_format")
    rules = Rules(table, job.checkpoint.max_string)
    answer = None if schema is None else _json(schema)
    if not job.tools or job.tool_choice == "none":
        return None if answer is None else _grammar(rules, syntax, _value(rules, syntax, thoughts, answer), {})
    form = syntax.calls or (BARE if job.tool_choice == "required" else None)
    tools, inputs = _callable_tools(table, job, any_arguments=any_arguments), _input_grammars(job)
    if form is None:
        return None if answer is None else _grammar(rules, syntax, _value(rules, syntax, thoughts, answer), {})
    calls = CallRules(rules, form, tools, several=job.parallel_tool_calls)
    required = harmony.call(calls) if syntax.is_harmony else _thoughts_rule(rules, syntax, thoughts) + calls.required()
    if job.tool_choice == "required":
        return replace(_grammar(rules, syntax, required, inputs), unenforced=calls.unenforced())
    if answer is not None:
        value = _value(rules, syntax, thoughts, answer)
        either = _grammar(rules, syntax, f"{rules.add(required)} | {rules.add(value)}", inputs)
        return replace(either, unenforced=calls.unenforced())
    text = harmony.text_or_call(calls) if syntax.is_harmony else _thinking_or(rules, syntax, thoughts, calls)
    return replace(_grammar(rules, syntax, text, inputs), unenforced=calls.unenforced())


def _grammar(rules: Rules, syntax: OutputSyntax, start: str, inputs: Mapping[str, str]) -> Grammar:
    return Grammar(_lark(f"start: {start}", *rules.lines, **inputs), _channel_endings(syntax))


def _channel_endings(syntax: OutputSyntax) -> tuple[str, ...]:
    if syntax.is_harmony:
        return (
            harmony.THOUGHT_END + harmony.ANSWER,
            harmony.THOUGHT_END,
            "<|channel|>commentary to=functions.",
        )
    own = (syntax.thoughts.closing,) if syntax.thoughts else ()
    if syntax.calls is None:
        return own
    marks = tuple(mark for mark in (syntax.calls.outer_end, syntax.calls.end) if mark)
    return own + syntax.calls.arguments.endings(syntax.calls.tail or syntax.calls.end) + marks


def _value(rules: Rules, syntax: OutputSyntax, thoughts: ThoughtState, value: str) -> str:
    """Return a JSON value, behind thoughts and inside the marks of an answer."""
    if syntax.is_harmony:
        return harmony.final(rules, value)
    around = syntax.thoughts
    begin, end = (around.answer_opening, around.answer_closing) if around else ("", "")
    space = "/[ \\n]{0,2}/"
    opening = f"({space} {rules.literal(begin)} {space})?" if begin else ""
    closing = f"({space} {rules.literal(end)})?" if end else ""
    return f"{_thoughts_rule(rules, syntax, thoughts)} {opening} {value} {closing}"


def _thoughts_rule(rules: Rules, syntax: OutputSyntax, thoughts: ThoughtState) -> str:
    """Return whole thoughts, if there may be some, and the white space behind them."""
    space = "/[ \\n]{0,2}/ "
    if syntax.thoughts is None or thoughts == "closed":
        return ""
    turn = f"({rules.literal(syntax.thoughts.turn)} {space})? " if syntax.thoughts.turn else ""
    rest = f"{rules.until(syntax.thoughts.closing)} {space}{turn}"
    if thoughts == "open":
        return rest
    return f"({space} {rules.literal(syntax.thoughts.opening.rstrip())} {rest})? "


def _thinking_or(rules: Rules, syntax: OutputSyntax, thoughts: ThoughtState, calls: CallRules) -> str:
    """Return text with calls, behind thoughts that may end or not."""
    if syntax.thoughts is None:
        return calls.text_with_calls()
    opening, closing = syntax.thoughts.opening.rstrip(), syntax.thoughts.closing
    begin = rules.literal(syntax.thoughts.answer_opening)
    text = rules.add(calls.text_with_calls(opening))
    body = rules.add(f"({begin})? {text}") if begin else text
    if thoughts == "closed":
        return body
    rest = rules.add(f"{rules.free(closing)}* | {rules.until(closing)} {body}")
    if thoughts == "open":
        return rest
    return f"{body} | PLAIN? {rules.literal(opening)} {rest}"


def _input_grammars(job: ChatJob) -> dict[str, str]:
    """Return the grammars of tools' inputs, by the names that `_callable_tools` has for them."""
    names = [tool["function"]["name"] for tool in job.tools]
    return {f"input_{names.index(name)}": grammar for name, grammar in job.input_grammars.items()}


def _callable_tools(table: TokenTable, job: ChatJob, *, any_arguments: bool) -> list[CallableTool]:
    """Return the tools as they are constrained."""
    tools = []
    for index, tool in enumerate(job.tools):
        function = tool["function"]
        name = function["name"]
        if job.allowed_tools and name not in job.allowed_tools:
            continue
        if grammar := job.input_grammars.get(name):
            _check(table, _lark("start: @input", input=grammar), f"tools[{index}].format.definition", "grammar")
            tools.append(CallableTool(name, {}, f"input_{index}"))
            continue
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        param = f"tools[{index}].function.parameters"
        if name in job.strict_tools:
            _check(table, _lark(f"start: {_json(tighten_parameters(parameters, job.checkpoint.max_string))}"), param)
        free = any_arguments and name not in job.strict_tools
        loose, keywords = (WIDEST, ("schema",)) if free else enforceable(table, parameters)
        schema = tighten_parameters(loose, job.checkpoint.max_string)
        tools.append(CallableTool(name, schema, param=param, unenforced=frozenset(keywords)))
    return tools


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_STYLE}, ensure_ascii=False)}"


def _lark(*rules: str, **others: str) -> str:
    """Return the grammar of these rules, which may refer to the `others` by name."""
    named = [{"name": name, "lark_grammar": text} for name, text in others.items()]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, *named]})


def _check(table: TokenTable, grammar: str, param: str, what: str = "JSON schema") -> None:
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, table.grammar)
    if failed:
        lines = [line.strip() for line in EXCERPT.split(messages[0])[0].splitlines()]
        reason = " ".join(line for line in lines if line.strip("^"))
        raise InvalidRequest(Failed("invalid_value", f"This {what} can't be enforced: {reason}.", param=param))
