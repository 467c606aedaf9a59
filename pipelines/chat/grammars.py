"""What an answer may look like, as a grammar of llguidance: JSON of a schema, tool calls, or text with calls in it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from llguidance import LLMatcher

from pipelines.chat.failures import Refused
from pipelines.chat.tokens import TokenTable
from pipelines.chat.tool_syntax import BARE, CallMarks
from pipelines.protocol.chat import ChatJob
from pipelines.protocol.images import Failed

STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as json.dumps writes
MOST_CALLS: Final = 16  # in one answer


@dataclass(frozen=True, slots=True)
class Grammar:
    """For llguidance."""

    text: str
    has_text: bool = False  # free text is part of it, so that an answer is not complete because it could end


def grammar_of(table: TokenTable, job: ChatJob, marks: CallMarks | None) -> Grammar | None:
    """What a job's answers must follow; None when they are free. Raises Refused, naming what can't be enforced.

    `marks` are how this model writes calls; without them, calls that are not required are not constrained.
    """
    schema = None if job.format is None else (job.format.schema or {"type": "object"})
    if schema is not None:
        _check(table, f"start: {_json(schema)}", "response_format")
    if not job.tools or job.tool_choice == "none":
        return None if schema is None else Grammar(_lark(f"start: {_json(schema)}"))
    if marks is None:
        if job.tool_choice == "auto":
            return None
        marks = BARE
    rules = _call_rules(table, job, marks)
    calls = "call" if not job.parallel_tool_calls or not marks.repeats else f'call ("\\n" call){{0,{MOST_CALLS - 1}}}'
    if job.tool_choice == "required":
        return Grammar(_lark(f"start: {calls}", *rules))
    if schema is not None:
        rules += [f"calls: {calls}", f"answer: {_json(schema)}"]
        return Grammar(_lark("start: calls | answer", *rules))
    return Grammar(_lark(*_text_with_calls(table, job, marks), *rules), has_text=True)


def _call_rules(table: TokenTable, job: ChatJob, marks: CallMarks) -> list[str]:
    """`call` is one whole call, `rest` what follows its opening mark."""
    rules, names = [], []
    for index, tool in enumerate(job.tools):
        function = tool["function"]
        if job.allowed_tools and function["name"] not in job.allowed_tools:
            continue
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        _check(table, f"start: {_json(schema)}", f"tools[{index}].function.parameters")
        names.append(f"tool_{index}")
        head = f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "{marks.arguments}": '
        rules.append(f'tool_{index}: {json.dumps(head)} {_json(schema)} "}}"')
    opening, closing = _mark(table, marks.opening), _mark(table, marks.closing)
    space = json.dumps(marks.space) if marks.space else ""
    return [*rules, f"call: {opening} rest", f"rest: {space} ({' | '.join(names)}) {space} {closing}"]


def _text_with_calls(table: TokenTable, job: ChatJob, marks: CallMarks) -> list[str]:
    """Free text; where a call begins, it is a whole and right one."""
    others = [token for text, token in table.marks.items() if text != marks.opening and token not in table.ends]
    other = f"(TEXT | <[{','.join(map(str, others))}]>)*" if others else "TEXT*"
    rules = [f"text: {other}", "TEXT: /(.|\\n)+/"]
    if not marks.opening:  # an answer that begins with a brace is a call
        return [*rules, "start: call | (NO_CALL text)?", "NO_CALL: /[^{]/"]
    rules.append(f"start: text_call{'*' if job.parallel_tool_calls else '?'} text")
    if marks.opening in table.marks:
        return [*rules, f"text_call: text {marks.opening} rest"]
    return [*rules, "text_call: until_call rest", f"until_call[lazy]: /(.|\\n)*/ {json.dumps(marks.opening)}"]


def _mark(table: TokenTable, text: str) -> str:
    """A mark as the grammar names it: a token of its own, or text."""
    if not text:
        return ""
    return text if text in table.marks else json.dumps(text)


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': STYLE}, ensure_ascii=False)}"


def _lark(*rules: str) -> str:
    return str(LLMatcher.grammar_from_lark("\n".join(rules)))


def _check(table: TokenTable, rule: str, param: str) -> None:
    failed, messages = LLMatcher.validate_grammar_with_warnings(_lark(rule), table.grammar)
    if failed:
        reason = messages[0].strip().splitlines()[0]
        raise Refused(Failed("invalid_value", f"This JSON schema can't be enforced: {reason}.", param=param))
