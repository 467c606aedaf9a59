"""The parts of a prompt that had no effect, for a header: an end that no text encoder read, and syntax of other
programs."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

SHOWN: Final = 60  # characters of what was cut off
# AUTOMATIC1111's adapters and weights. Other parentheses are words like any, so are times and ratios in them.
ADAPTER: Final = re.compile(r"<(?:lora|lyco|hypernet):([^<>:]+)(?::(-?[\d.]+))?[^<>]*>")
WEIGHT: Final = re.compile(r"\([^()]*[^()\s:\d]\s*:\s*(?:[0-3](?:\.\d+)?|\.\d+)\)")
# The other lines of its parameters, pasted as a whole, and ComfyUI's embeddings.
PASTED: Final = re.compile(r"^(?:Negative prompt:|Steps: \d+(?=,))", re.MULTILINE)
EMBEDDING: Final = re.compile(r"\bembedding:([\w.-]*\w)")
SAFE: Final = " !#$&'()*+/:;<=>?@[]{}\"|^`"  # in a header whose entries are separated by commas


def describe_truncation(parameters: Mapping[str, Any], prompts: Mapping[str, str | None]) -> str:
    """Describe the parts of a call's prompts that no text encoder read, by the answer's `parameters`: `prompt: 14 of 89
    tokens, from "."` with the text as JSON; "" if they read all of it."""
    cuts = []
    for field, text in prompts.items():
        tokens = parameters.get(f"{field}_tokens", {})
        if (cut := tokens.get("cut")) is None:
            continue
        where = ""
        if (start := tokens.get("cut_at")) is not None and text:
            where = f", from {json.dumps(text[start:].strip()[:SHOWN])}"
        cuts.append(f"{field}: {cut} of {tokens['used'] + cut} tokens{where}")
    return "; ".join(cuts)


def foreign_syntax(prompts: Mapping[str, str | None]) -> list[str]:
    """Return the adapters, weights, parameters and embeddings that are written as in the prompts of AUTOMATIC1111 and
    ComfyUI and drawn as plain words here: `prompt:<lora:ink:1>`, with the field that works, and `prompt:(red:1.5)`.
    Once each, percent-encoded."""
    found = [
        f"{field}:{quote(match[0], safe=SAFE)}{hint}"
        for field, text in prompts.items()
        for match, hint in _foreign_syntax(text or "")
    ]
    return list(dict.fromkeys(found))


def _foreign_syntax(text: str) -> Iterator[tuple[re.Match[str], str]]:
    for match in ADAPTER.finditer(text):
        name = quote(match[1].strip(), safe=SAFE)
        yield match, f' (send loras: {{"{name}": {match[2] or 1}}})'
    for match in WEIGHT.finditer(text):
        yield match, ""
    for match in PASTED.finditer(text):
        yield match, f" (send {match[0].partition(':')[0].lower().replace(' ', '_')} as a field)"
    for match in EMBEDDING.finditer(text):
        yield match, f" (write <{quote(match[1], safe=SAFE)}>)"
