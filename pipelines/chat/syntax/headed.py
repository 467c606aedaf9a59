"""Families whose answers are messages with headers: thoughts, texts and calls each have one.

A part of the table of families; harmony, which is one of them too, has its own module. Sources: the published
chat templates of the families.
"""

from collections.abc import Mapping
from typing import Final

from pipelines.chat.syntax.calls import NAME, PLAIN_NAME, CallFormat
from pipelines.chat.syntax.known import JSON_CALL, KnownSyntax, Thoughts
from pipelines.chat.syntax.tags import TagArguments

TABLE: Final[Mapping[str, KnownSyntax]] = {
    "solar": KnownSyntax(
        CallFormat(
            head="{id}<|tool_call:name|>{name}<|tool_call:args|>",
            head_pattern=r"\w*\s*<\|tool_call:name\|>" + PLAIN_NAME + r"\s*<\|tool_call:args\|>\s*(?=\{)",
            begin="<|tool_call:begin|>",
            end="<|tool_call:end|>",
            outer_begin="<|tool_calls|>",
            outer_end="<|calls|>",
            separator="",
        ),
        ("<|tool_call:begin|>", "<|tool_call:args|>"),
        model_types=("solar_open",),
        tokens=("<|tool_call:begin|>",),
        thoughts=Thoughts("<|think|>", "<|end|>", "<|content|>", "<|end|>", turn="<|begin|>assistant"),
        marker=r"<\|(?:content|end|calls)\|>|<\|begin\|>assistant",
    ),
    "muse": KnownSyntax(
        CallFormat(
            head='<atem:invoke name="{name}">',
            arguments=TagArguments('<atem:parameter name="{key}">', "</atem:parameter>"),
            tail="</atem:invoke>",
            header="to={name}<|message|>",
            answer="to=user<|message|>",
            outer_begin="<atem:function_calls>",
            outer_end="</atem:function_calls>",
            lead="<atem:invoke",
            opening_pattern=r"\s*(?:to=" + NAME + r"<\|message\|>)?\s*<atem:function_calls>",
        ),
        ("<atem:function_calls>",),
        model_types=("muse_glimmer", "muse_glimmer_text"),
        tokens=("<|message|>", "<|eom|>"),
        thoughts=Thoughts("to=self<|message|>", "<|eom|>", "to=user<|message|>", turn="<|start|>assistant"),
        marker=r"<\|eo[mt]\|>|<\|start\|>assistant|\s*to=user<\|message\|>",
    ),
    "kimi-tags": KnownSyntax(
        CallFormat(
            head='<|open|>call tool="{name}" index="{number}"<|sep|>',
            arguments=TagArguments('<|open|>argument key="{key}" type="{type}"<|sep|>', "<|close|>argument<|sep|>"),
            tail="<|close|>call<|sep|>",
            outer_begin="<|open|>tools<|sep|>",
            outer_end="<|close|>tools<|sep|>",
            separator="",
        ),
        ("<|open|>", "<|sep|>", "<|close|>"),
        thoughts=Thoughts(
            "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>", "<|close|>response<|sep|>"
        ),
        marker=r"<\|open\|>response<\|sep\|>|<\|close\|>(?:response|message)<\|sep\|>",
    ),
    "gigachat": KnownSyntax(
        JSON_CALL(
            begin="function call<|role_sep|>\n",
            lead="{",
            opening_pattern=r"\s*function call<\|role_sep\|>\s*(?=\{)",
            repeats=False,
        ),
        ("'function call'", "<|role_sep|>"),
    ),
    "functionary": KnownSyntax(
        CallFormat(  # the prompt ends in the first `>>>`
            head="{name}\n",
            separator=">>>",
            answer="all\n",
            opening_pattern=r"(?:\A|>>>)\s*(?!all\n)(?=" + NAME + r"\n\s*\{)",
            closing_pattern=r"(?=>>>)",
        ),
        (">>>all\\n",),
        marker=r"(?:\A|>>>)\s*all\n",
    ),
}
