"""Strings that stand between marks as they are, with the length and the pattern that a schema asks for."""

import re
from typing import Final

from pipelines.chat.syntax.arguments import Schema
from pipelines.chat.syntax.rules import Rules, escape_lark, quoted

ANY: Final = "(.|\\n)*"
PARTS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)  # of a regular expression
ONE_END: Final = re.compile(r"(?<!\\)(?:\\\\)*\$$")


def raw_string(rules: Rules, schema: Schema, end: str, space: str = "") -> str:
    """Return the expression of a string up to and with the mark `end`. Models that write `space` around strings may
    leave it out of those that have no bounds."""
    terminal = _terminal(rules, schema)
    if not terminal:
        return f"/{escape_lark(space)}?/ {rules.until(end)}" if space else rules.until(end)
    before, token, after = rules.split(end)
    if token:
        last = rules.terminal(f"{terminal} {quoted(space + before)}") if space + before else terminal
        return f"{quoted(space)} {last} {rules.literal(token + after)}"
    inside = rules.terminal(f"{terminal} & ~/{ANY}{escape_lark(end)}{ANY}/")
    return f"{quoted(space)} {rules.add(f'{inside} {quoted(space + end)}', lazy=True)}"


def is_bounded(rules: Rules, schema: Schema) -> bool:
    """Return whether the grammar of these strings is more than any text."""
    return bool(_terminal(rules, schema))


def _terminal(rules: Rules, schema: Schema) -> str:
    """Return the name of the terminal of such strings; empty for any text. What it does not say is left out."""
    rules.left_out |= schema.keys() & {"format"}
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", rules.max_string))
    last = "" if most == rules.max_string else most
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
