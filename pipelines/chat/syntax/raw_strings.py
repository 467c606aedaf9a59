"""Strings that stand between marks as they are, with the length and the pattern that a schema asks for."""

import re
from typing import Final

from pipelines.chat.syntax.arguments import Schema
from pipelines.chat.syntax.rules import Rules, escape_lark, quoted

ANY: Final = "(.|\\n)*"
PARTS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)  # of a regular expression
ONE_END: Final = re.compile(r"(?<!\\)(?:\\\\)*\$$")


def raw_string(rules: Rules, schema: Schema, end: str) -> str:
    """Return the expression of a string up to and with the mark `end`."""
    terminal = _terminal(rules, schema)
    if not terminal:
        return rules.until(end)
    before, token, after = rules.split(end)
    if token:
        last = rules.terminal(f"{terminal} {quoted(before)}") if before else terminal
        return f"{last} {rules.literal(token + after)}"
    inside = rules.terminal(f"{terminal} & ~/{ANY}{escape_lark(end)}{ANY}/")
    return rules.add(f"{inside} {quoted(end)}", lazy=True)


def raw_string_before(rules: Rules, schema: Schema, end: str, gap: str, follower: str, space: str) -> str:
    """Return the expression of a string up to and with the mark `end`, a `gap`, which is a regular expression, and the
    `follower`: without them, the mark is a part of the string. None of the marks has a control token.

    Where a family has `space` around strings, one that begins with it ends with it, and another one without.
    """
    last = f"{escape_lark(end)}{gap}{escape_lark(follower)}"
    if terminal := _terminal(rules, schema):
        around = escape_lark(space)
        inside = rules.terminal(f"{terminal} & ~/{ANY}{around}{last}{ANY}/")
        return f"{quoted(space)} {rules.add(f'{inside} /{around}{last}/', lazy=True)}"
    if not space:
        return _any_before(rules, "", last)
    line = escape_lark(space)
    whole = rules.add(f"/{line}({ANY}{line})?{last}/", lazy=True)
    lines = f"{whole}{_with_tokens(rules, f'/{line}{ANY}/', line + last)}"
    return f"{lines} | {_any_before(rules, f'[^{line}]', last)}"


def _any_before(rules: Rules, first: str, last: str) -> str:
    """Return the expression of text up to what is `last`. Its first character is of the class `first`, if any."""
    whole = rules.add(f"/({first}{ANY})?{last}/", lazy=True)
    return f"{whole}{_with_tokens(rules, f'/{first}{ANY}/?' if first else 'ANY?', last)}"


def _with_tokens(rules: Rules, first: str, last: str) -> str:
    """Return the further option of a text with control tokens in it; empty if there are none."""
    tokens = rules.control_tokens()
    ending = rules.add(f"/{ANY}{last}/", lazy=True) if tokens else ""
    return f" | {first} {tokens} (ANY? {tokens})* {ending}" if tokens else ""


def is_bounded(rules: Rules, schema: Schema) -> bool:
    """Return whether the grammar of these strings is more than any text."""
    return bool(_terminal(rules, schema))


def _terminal(rules: Rules, schema: Schema) -> str:
    """Return the name of the terminal of such strings; empty for any text. What it does not say is left out."""
    rules.left_out |= schema.keys() & {"format"}
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength", rules.max_string)
    last = "" if most == rules.max_string else int(most)
    parts = [f"/(.|\\n){{{least},{last}}}/"] if least or last != "" else []
    if pattern := schema.get("pattern"):
        found = f"/{whole_text_regex(pattern)}/"
        if rules.takes(found):
            parts.append(found)
        else:
            rules.left_out.add("pattern")
    return rules.terminal(" & ".join(parts)) if parts else ""


def whole_text_regex(pattern: str) -> str:
    """Return the regular expression, as Lark writes it, of the whole texts in which a search finds the pattern."""
    branches, depth = [""], 0
    for part in PARTS.findall(pattern):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and not depth:
            branches.append("")
        else:
            branches[-1] += part if part.startswith("\\") else part.replace("/", "\\/").replace("\n", "\\n")
    return "|".join(map(_whole_text_pattern, branches))


def _whole_text_pattern(branch: str) -> str:
    begins, ends = branch.startswith("^"), ONE_END.search(branch) is not None
    inner = branch[int(begins) : len(branch) - int(ends)]
    return f"{'' if begins else ANY}({inner}){'' if ends else ANY}"
