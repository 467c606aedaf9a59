"""The table of families: how each writes thoughts and calls, and by which marks of its template it is known.

Sources: the families' published chat templates and model cards. A model type decides where a template says nothing.
Several families may write alike: an entry is named after the first family that wrote so, or after the format.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pipelines.chat.syntax import harmony
from pipelines.chat.syntax.calls import CONTENT, NAME, PLAIN_NAME, CallFormat
from pipelines.chat.syntax.known import JSON_CALL, KnownSyntax, Thoughts
from pipelines.chat.syntax.literals import GemmaArguments, PythonArguments
from pipelines.chat.syntax.nested import MINIMAX, NestedArguments
from pipelines.chat.syntax.output_parser import OutputParser
from pipelines.chat.syntax.tags import TagArguments
from pipelines.protocol.chat import ToolCallDelta

XML: Final = TagArguments("<parameter={key}>", "</parameter>", space="\n")
PARAMETER: Final = TagArguments('<parameter name="{key}">', "</parameter>")
DSML: Final = TagArguments('<｜DSML｜parameter name="{key}" string="{string}">', "</｜DSML｜parameter>")
TAG: Final = r"(?:<\|python_tag\|>|<\|python_start\|>(?:<\|python_end\|>)?)?"
NAMED: Final = r'(?=\{\s*"(?:name|parameters|arguments|type|function)"\s*:)'
BARE: Final = CallFormat(  # Llama 3's JSON; any model can be constrained to it
    head='{"name": "{name}", "parameters": ',
    tail="}",
    opening_pattern=rf"\s*{TAG}\s*{NAMED}(?<=(?:\A|</think>)\s*{TAG}\s*)",  # as `_pattern_at_start`
    lead='{"name"',
    repeats=False,
)
HERMES: Final = JSON_CALL(begin="<tool_call>", end="</tool_call>", lead="{")  # and Qwen, Granite 4, SmolLM3
FUNCTION_XML: Final = CallFormat(
    head="<function={name}>",
    arguments=XML,
    tail="</function>",
    begin="<tool_call>",
    end="</tool_call>",
    lead="<function=",
    opening_pattern=(  # some leave the tag out
        r"\s*(?:<tool_call>\s*(?=<function=)|(?=<function=)(?:(?<=\n)|(?<=(?:\A|</think>)\s*)))"
    ),
)
PYTHON_CALL: Final = partial(CallFormat, head="{name}(", arguments=PythonArguments())
DEEPSEEK_CALL: Final = partial(
    CallFormat,
    begin="<｜tool▁call▁begin｜>",
    end="<｜tool▁call▁end｜>",
    outer_begin="<｜tool▁calls▁begin｜>",
    outer_end="<｜tool▁calls▁end｜>",
)


def _dsml(outer: str) -> CallFormat:
    return CallFormat(
        head='<｜DSML｜invoke name="{name}">',
        arguments=DSML,
        tail="</｜DSML｜invoke>",
        outer_begin=f"<｜DSML｜{outer}>",
        outer_end=f"</｜DSML｜{outer}>",
    )


def _mistral(head: str) -> CallFormat:
    return CallFormat(
        head=head,
        head_pattern=PLAIN_NAME + r"\s*(?:\[CALL_ID\]\s*\w+\s*)?\[ARGS\]\s*(?=\{)",
        begin="[TOOL_CALLS]",
        separator="",
        closing_pattern=r"(?=\[TOOL_CALLS\])",
    )


TABLE: Final[Mapping[str, KnownSyntax]] = {
    # whose answers are messages with headers: thoughts, texts and calls each have one
    "harmony": KnownSyntax(harmony.CALLS, ("<|channel|>", "<|message|>"), model_types=("gpt_oss",), tokens=()),
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
    # whose calls stand in the text of an answer
    "gemma4": KnownSyntax(
        CallFormat(
            head="call:{name}", arguments=GemmaArguments(), begin="<|tool_call>", end="<tool_call|>", separator=""
        ),
        ("<|tool_call>call:",),
        model_types=("gemma4", "gemma4_text"),
    ),
    "mistral-call-id": KnownSyntax(
        _mistral("{name}[CALL_ID]{id}[ARGS]"),
        ("[TOOL_CALLS]", "[CALL_ID]"),
    ),
    "mistral-args": KnownSyntax(
        _mistral("{name}[ARGS]"),
        ("[TOOL_CALLS]", "[ARGS]"),
        model_types=("ministral3", "mistral3"),
        tokens=("[ARGS]",),
    ),
    "mistral-list": KnownSyntax(
        JSON_CALL(tail=', "id": "{id}"}', outer_begin="[TOOL_CALLS]", lead="["),
        ("[TOOL_CALLS]",),
        model_types=("mistral", "mixtral"),
    ),
    "deepseek-dsml": KnownSyntax(
        _dsml("function_calls"),
        ("function_calls>", "invoke name=", "DSML"),
        model_types=("deepseek_v32",),
        tokens=("｜DSML｜",),
    ),
    "deepseek-dsml-v4": KnownSyntax(
        _dsml("tool_calls"),
        ("tool_calls>", "invoke name=", "DSML"),
        model_types=("deepseek_v4",),
        tokens=("｜DSML｜",),
    ),
    "deepseek-r1": KnownSyntax(
        DEEPSEEK_CALL(
            head="function<｜tool▁sep｜>{name}\n```json\n",
            tail="\n```",
            head_pattern=r"(?:function\s*)?<｜tool▁sep｜>" + PLAIN_NAME + r"\s*(?:```json\s*)?(?=\{)",
        ),
        ("<｜tool▁sep｜>", "```json"),
    ),
    "deepseek": KnownSyntax(
        DEEPSEEK_CALL(head="{name}<｜tool▁sep｜>"),
        ("<｜tool▁sep｜>",),
        model_types=("deepseek_v3",),
        tokens=("<｜tool▁sep｜>",),
    ),
    "kimi": KnownSyntax(
        CallFormat(
            head="functions.{name}:{number}<|tool_call_argument_begin|>",
            head_pattern=r"(?:functions\.)?" + PLAIN_NAME + r"(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(?=\{)",
            begin="<|tool_call_begin|>",
            end="<|tool_call_end|>",
            outer_begin="<|tool_calls_section_begin|>",
            outer_end="<|tool_calls_section_end|>",
        ),
        ("<|tool_call_argument_begin|>",),
    ),
    "minimax": KnownSyntax(
        CallFormat(
            head='<invoke name="{name}">',
            arguments=PARAMETER,
            tail="</invoke>",
            outer_begin="<minimax:tool_call>",
            outer_end="</minimax:tool_call>",
            lead="<invoke",
        ),
        ("<minimax:tool_call>", "<invoke"),
        model_types=("minimax_m2",),
    ),
    "minimax-nested": KnownSyntax(
        CallFormat(
            head=f'{MINIMAX}<invoke name="{{name}}">',
            head_pattern=r'(?:\]?<\]minimax\[>\[)?<invoke name="(?P<name>[^"]+)">',
            arguments=NestedArguments(),
            tail=f"{MINIMAX}</invoke>",
            outer_begin=f"{MINIMAX}<tool_call>",
            outer_end=f"{MINIMAX}</tool_call>",
        ),
        (MINIMAX, "<invoke"),
        model_types=("minimax_m3_vl", "minimax_m3_vl_text"),
        tokens=(MINIMAX,),
    ),
    "seed": KnownSyntax(
        replace(FUNCTION_XML, begin="<seed:tool_call>", end="</seed:tool_call>", opening_pattern=""),
        ("<seed:tool_call>",),
        model_types=("seed_oss",),
    ),
    "glm": KnownSyntax(
        CallFormat(
            head="{name}",
            head_pattern=PLAIN_NAME + r"\s*(?=<arg_key>)",
            arguments=TagArguments("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>"),
            begin="<tool_call>",
            end="</tool_call>",
            lead_pattern=NAME + r"\s*<",
            name_alone=True,
        ),
        ("<arg_key>",),
        model_types=("glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "glm4v_moe"),
        tokens=("<arg_key>",),
    ),
    "hunyuan": KnownSyntax(
        CallFormat(
            head="{name}<tool_sep:opensource>",
            arguments=TagArguments(
                "<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>"
            ),
            tail="</tool_call:opensource>",
            begin="<tool_call:opensource>",
            outer_begin="<tool_calls:opensource>",
            outer_end="</tool_calls:opensource>",
        ),
        ("HYTK", "<arg_key{}>"),
    ),
    "function-xml": KnownSyntax(
        FUNCTION_XML,
        ("<function=", "<parameter="),
        model_types=("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "nemotron_h"),
    ),
    "function-params": KnownSyntax(
        CallFormat(
            head='{name}">',
            arguments=TagArguments('<param name="{key}">', "</param>"),
            begin='<function name="',
            end="</function>",
            lead_pattern=NAME + r'">',
            name_alone=True,
        ),
        ('<function name="', '<param name="'),
    ),
    "function-json": KnownSyntax(
        CallFormat(head="{name}>", begin="<function=", end="</function>", separator="", lead_pattern=NAME + r">"),
        ("<function=",),
    ),
    "lfm2": KnownSyntax(
        PYTHON_CALL(outer_begin="<|tool_call_start|>", outer_end="<|tool_call_end|>", lead="["),
        ("<|tool_list_start|>",),
        model_types=("lfm2", "lfm2_moe", "lfm2_vl"),
    ),
    "llama4-pythonic": KnownSyntax(
        PYTHON_CALL(
            outer_begin="<|python_start|>",
            outer_end="<|python_end|>",
            lead="[",
            opening_pattern=r"\s*(?:<\|python_start\|>\s*|\A)(?=\[\s*" + NAME + r"\()",
        ),
        ("<|python_start|>",),
        model_types=("llama4", "llama4_text"),
    ),
    "function-calls": KnownSyntax(
        PYTHON_CALL(outer_begin="<function_calls>", outer_end="</function_calls>", lead_pattern=NAME + r"\("),
        ("<function_calls>",),
        model_types=("olmo3",),
    ),
    "apertus": KnownSyntax(
        CallFormat(
            head='{"{name}": ',
            head_pattern=r'\{\s*"(?P<name>(?:[^"\\]|\\.)*)"\s*:\s*(?=\{)',
            tail="}",
            outer_begin="<|tools_prefix|>",
            outer_end="<|tools_suffix|>",
            lead="[",
        ),
        ("<|tools_prefix|>",),
        model_types=("apertus",),
    ),
    "command-r7b": KnownSyntax(
        CallFormat(
            head='{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": ',
            tail="}",
            outer_begin="<|START_ACTION|>",
            outer_end="<|END_ACTION|>",
            lead="[",
        ),
        ("<|START_ACTION|>",),
        model_types=("cohere2",),
    ),
    "command-r": KnownSyntax(
        CallFormat(
            head='{"tool_name": "{name}", "parameters": ',
            tail="}",
            outer_begin="Action: ```json\n",
            outer_end="```",
            lead="[",
            opening_pattern=r"\s*Action:\s*```json\s*(?=\[)",
        ),
        ("Action:", "```json"),
        model_types=("cohere",),
        tokens=(),
    ),
    "tool-calls-list": KnownSyntax(
        JSON_CALL(outer_begin="<tool_calls>", outer_end="</tool_calls>", lead="["), ("<tool_calls>[",)
    ),
    "function-call-mark": KnownSyntax(JSON_CALL(begin="<|function_call|>", lead="{"), ("<|function_call|>",)),
    "tool-calls": KnownSyntax(
        JSON_CALL(outer_begin="<tool_calls>", outer_end="</tool_calls>", lead="{"), ("<tool_calls>\\n{",)
    ),
    "toolcall-list": KnownSyntax(
        JSON_CALL(outer_begin="<TOOLCALL>", outer_end="</TOOLCALL>", lead="["), ("<TOOLCALL>",)
    ),
    "functools": KnownSyntax(JSON_CALL(outer_begin="functools", lead="["), ("functools[",)),
    "phi4": KnownSyntax(
        JSON_CALL(
            outer_begin="<|tool_call|>", outer_end="<|/tool_call|>", lead="[", opening_pattern=r"\s*<\|tool_call\|>"
        ),
        ("<|/tool_call|>",),
        model_types=("phi3",),
        tokens=("<|/tool_call|>",),
    ),
    "granite3": KnownSyntax(
        JSON_CALL(
            outer_begin="<|tool_call|>", lead="[", opening_pattern=r"\s*(?:<\|tool_call\|>|<tool_call>\s*(?=\[))"
        ),
        ("<|tool_call|>",),
        model_types=("granite", "granitemoe"),
    ),
    "hermes": KnownSyntax(
        HERMES,
        ("<tool_call>",),
        model_types=(
            "smollm3",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_moe",
            "qwen3_next",
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen3_vl",
        ),
    ),
    "json": KnownSyntax(BARE, ('"parameters"',), model_types=("llama", "mllama"), tokens=()),
}


SHOWN_NAME: Final = "qzcalled"
SHOWN_ARGUMENTS: Final = {"city": "qzvaluea"}
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": SHOWN_NAME, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def choose(template: str, model_type: str, vocabulary: set[str], shown: str) -> str | None:
    """Return the name of the syntax; None for one that the table lacks. `shown` is the probe's call as the template
    writes it, empty where it writes none."""
    marked = list(_marked_syntaxes(template))
    if shown:
        return next((name for name in (*marked, *TABLE) if parses_probe_call(name, shown)), None)
    typed = (name for name, known in TABLE.items() if known.fits(model_type, vocabulary))
    return next(iter((*marked, *typed)), None)


def parses_probe_call(name: str, shown: str) -> bool:
    """Return whether this syntax reads the probe's call in what the template wrote."""
    calls = TABLE[name].calls
    parser = OutputParser({**calls.parser_fields(), **CONTENT}, "", (TOOL,), calls)
    pieces = [*parser.feed(shown), *parser.flush()]
    found = [piece for piece in pieces if isinstance(piece, ToolCallDelta)]
    try:
        arguments = json.loads("".join(piece.arguments for piece in found))
    except ValueError:
        return False
    return [piece.name for piece in found if piece.name] == [SHOWN_NAME] and bool(arguments == SHOWN_ARGUMENTS)


def _marked_syntaxes(template: str) -> Iterator[str]:
    for name, known in TABLE.items():
        if all(mark in template for mark in known.marks):
            yield name
