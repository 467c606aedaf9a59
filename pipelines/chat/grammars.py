"""Grammars for constrained decoding with llguidance: JSON of a schema, tool calls, or text with calls in it.

The input of a tool with a grammar of its own is written as it is, not as a JSON string: {"name": "patch", "input": and
then what that grammar allows, up to the end of the call.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from llguidance import LLMatcher

from pipelines.chat.failures import InvalidRequest
from pipelines.chat.schemas import tighten, tighten_parameters
from pipelines.chat.tokens import TokenTable
from pipelines.chat.tool_syntax import BARE, ToolCallFormat
from pipelines.protocol.chat import ChatJob
from pipelines.protocol.images import Failed

JSON_STYLE: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}  # as json.dumps writes
MAX_CALLS: Final = 16  # in one answer


@dataclass(frozen=True, slots=True)
class Grammar:
    text: str
    has_text: bool = False  # free text is part of it: output that could end here is not therefore complete


def build_grammar(table: TokenTable, job: ChatJob, call_format: ToolCallFormat | None) -> Grammar | None:
    """Build the grammar of a job's output; None if it is unconstrained. Raises InvalidRequest, naming the part that
    can't be enforced.

    Without a `call_format` that is known, calls that are not required are not constrained.
    """
    max_string = job.checkpoint.max_string
    schema = None if job.format is None else tighten(job.format.schema or {"type": "object"}, max_string)
    if schema is not None:
        _check(table, _lark(f"start: {_json(schema)}"), "response_format")
    if not job.tools or job.tool_choice == "none":
        return None if schema is None else Grammar(_lark(f"start: {_json(schema)}"))
    if call_format is None:
        if job.tool_choice == "auto":
            return None
        call_format = BARE
    rules, inputs = _call_rules(table, job, call_format), _input_grammars(job)
    several = job.parallel_tool_calls and call_format.repeats
    calls = f'call ("\\n" call){{0,{MAX_CALLS - 1}}}' if several else "call"
    if job.tool_choice == "required":
        return Grammar(_lark(f"start: {calls}", *rules, **inputs))
    if schema is not None:
        rules += [f"calls: {calls}", f"answer: {_json(schema)}"]
        return Grammar(_lark("start: calls | answer", *rules, **inputs))
    return Grammar(_lark(*_text_with_calls(table, job, call_format), *rules, **inputs), has_text=True)


def _input_grammars(job: ChatJob) -> dict[str, str]:
    """Return the grammars of tools' inputs, by the names that `_call_rules` has for them."""
    names = [tool["function"]["name"] for tool in job.tools]
    return {f"input_{names.index(name)}": grammar for name, grammar in job.input_grammars.items()}


def _call_rules(table: TokenTable, job: ChatJob, call_format: ToolCallFormat) -> list[str]:
    """Return the rules of calls: `call` is one whole call, `rest` the part that follows its opening delimiter."""
    rules, names = [], []
    opening, closing = _delimiter(table, call_format.opening), _delimiter(table, call_format.closing)
    space = json.dumps(call_format.space) if call_format.space else ""
    for index, tool in enumerate(job.tools):
        function = tool["function"]
        if job.allowed_tools and function["name"] not in job.allowed_tools:
            continue
        names.append(f"tool_{index}")
        name = json.dumps(function["name"], ensure_ascii=False)
        if grammar := job.input_grammars.get(function["name"]):
            _check(table, _lark("start: @input", input=grammar), f"tools[{index}].format.definition", "grammar")
            head = f'{{"name": {name}, "input": '
            rules.append(f"tool_{index}: {json.dumps(head)} @input_{index}")
            continue
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        schema = tighten_parameters(parameters, job.checkpoint.max_string)
        _check(table, _lark(f"start: {_json(schema)}"), f"tools[{index}].function.parameters")
        head = f'{{"name": {name}, "{call_format.arguments}": '
        rules.append(f'tool_{index}: {json.dumps(head)} {_json(schema)} "}}" {space}')
    return [*rules, f"call: {opening} rest", f"rest: {space} ({' | '.join(names)}) {closing}"]


def _text_with_calls(table: TokenTable, job: ChatJob, call_format: ToolCallFormat) -> list[str]:
    """Free text, in which every call that begins is whole and valid."""
    opening = call_format.opening
    others = [token for text, token in table.control_tokens.items() if text != opening and token not in table.eos_ids]
    other = f"(TEXT | <[{','.join(map(str, others))}]>)*" if others else "TEXT*"
    rules = [f"text: {other}", "TEXT: /(.|\\n)+/"]
    if not opening:  # an answer that begins with a brace is a call
        return [*rules, "start: call | (NO_CALL text)?", "NO_CALL: /[^{]/"]
    rules.append(f"start: text_call{'*' if job.parallel_tool_calls else '?'} text")
    if opening in table.control_tokens:
        return [*rules, f"text_call: text {opening} rest"]
    return [*rules, "text_call: until_call rest", f"until_call[lazy]: /(.|\\n)*/ {json.dumps(opening)}"]


def _delimiter(table: TokenTable, text: str) -> str:
    """Return a delimiter as the grammar names it: a token of its own, or text."""
    if not text:
        return ""
    return text if text in table.control_tokens else json.dumps(text)


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_STYLE}, ensure_ascii=False)}"


def _lark(*rules: str, **others: str) -> str:
    """Return the grammar of these rules, which may refer to the `others` by name."""
    named = [{"name": name, "lark_grammar": text} for name, text in others.items()]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, *named]})


def _check(table: TokenTable, grammar: str, param: str, what: str = "JSON schema") -> None:
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, table.grammar)
    if failed:
        reason = messages[0].strip().splitlines()[0]
        raise InvalidRequest(Failed("invalid_value", f"This {what} can't be enforced: {reason}.", param=param))
