"""Harmony, the format of gpt-oss: messages in channels, each with a header.

`<|channel|>analysis<|message|>` begins thoughts, `<|channel|>final<|message|>` the answer, and a header with
`to=functions.NAME` a call, before or behind the channel.
"""

from typing import Final

from pipelines.chat.syntax.call_rules import CallRules
from pipelines.chat.syntax.calls import NAME, CallFormat, ParserFields
from pipelines.chat.syntax.rules import Rules, escape_lark

START: Final = r"(?:(?:<\|end\|>)?\s*<\|start\|>assistant)?"
HEADER_END: Final = r"(?:<\|constrain\|>[^<]*)?<\|message\|>"
MESSAGE_END: Final = r"<\|end\|>|<\|return\|>|<\|call\|>|(?=<\|start\|>)|(?=<\|channel\|>)"
CALL: Final = rf"{START}\s*(?:<\|channel\|>(?:commentary|analysis)\s*)?to="

THOUGHT_END: Final = "<|end|>"
ANSWER: Final = "<|start|>assistant<|channel|>final<|message|>"

CALLS: Final = CallFormat(
    head="{name}",
    head_pattern=rf"(?:functions\.)?(?P<name>{NAME})" + r"[^{]*?<\|message\|>\s*(?=\{)",
    opening_pattern=CALL,
    closing_pattern=r"<\|end\|>|<\|return\|>|<\|call\|>|(?=<\|start\|>)",
    begin="<|channel|>",
    end="<|call|>",
    repeats=False,
)
FIELDS: Final[ParserFields] = {
    "reasoning_content": {
        "open_pattern": rf"{START}<\|channel\|>analysis\s*{HEADER_END}",
        "close_pattern": MESSAGE_END,
        "content": "text",
        "repeats": True,
    },
    # the headers of everything else, and what ends a message
    "marker": {
        "open_pattern": rf"{START}<\|channel\|>(?!analysis)(?:(?!to=)[^<])*{HEADER_END}|<\|(?:end|return|call)\|>",
        "close_pattern": "",
        "content": "text",
        "repeats": True,
    },
}


def _header(rules: Rules, channel: str) -> str:
    kind = f"({rules.literal('<|constrain|>')} /[a-z]{{1,20}}/)?"
    return f"{rules.literal('<|channel|>')} /{channel}[ ]?/ {kind} {rules.literal('<|message|>')}"


def thoughts(rules: Rules, channels: str = "(analysis|commentary)") -> str:
    """Return the grammar expression of whole messages before the answer: thoughts, and, in commentary, what is said
    before a call."""
    text = f"{rules.free('<|end|>', '<|start|>', '<|channel|>', '<|message|>')}*"
    header, end = _header(rules, channels), rules.literal("<|end|>")
    message = rules.add(f"{header} {text} {end} {rules.literal('<|start|>')} /assistant/")
    return f"{message}*"


def final(rules: Rules, value: str) -> str:
    """Return the grammar expression of thoughts, and of a final message whose text is `value`, an expression.
    Commentary is not allowed: it would be text before the value."""
    return f"{thoughts(rules, 'analysis')} {_header(rules, 'final')} {value}"


def call(calls: CallRules) -> str:
    """Return the grammar expression of thoughts and one call."""
    rules, options = calls.rules, []
    channel, message = rules.literal("<|channel|>"), rules.literal("<|message|>")
    kind = f"((/[ ]?/ {rules.literal('<|constrain|>')} | / /) /(json|code)[ ]?/ | /[ ]?/) {message}"
    for tool in calls.tools:
        before = f"{channel} /(commentary|analysis) to=functions\\.{escape_lark(tool.name)}/ {kind}"
        behind = f"/ to=functions\\.{escape_lark(tool.name)}/ {channel} /commentary/ {kind}"
        value = f'"{{\\"input\\": " @{tool.grammar}' if tool.grammar else calls.form.arguments.rule(rules, tool.schema)
        options += [f"{before} {value}", f"{behind} {value}"]
    ended = "" if rules.ends("<|call|>") else f" ({rules.literal('<|call|>')})?"
    return f"{thoughts(rules)} ({' | '.join(map(rules.add, options))}){ended}"


def text_or_call(calls: CallRules) -> str:
    """Return the grammar expression of thoughts, and an answer or a call."""
    rules = calls.rules
    text = f"{rules.free('<|start|>', '<|channel|>', '<|message|>')}*"
    answer = rules.add(f"{_header(rules, '(analysis|commentary|final)')} {text}")
    return f"{call(calls)} | {thoughts(rules)} {answer}?"
