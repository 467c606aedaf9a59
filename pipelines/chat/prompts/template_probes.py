"""Renders small conversations with a chat template, and finds by them what the template takes.

A template takes a conversation if it raises nothing and every marked word of it is in the prompt: some templates raise
for what they do not know, others leave it out without a word.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

from pipelines.chat.prompts.content import Message
from pipelines.chat.prompts.probing import (
    BARE_TOOLS,
    UNKNOWN,
    Prober,
    Render,
    TemplateRefused,
    assistant,
    developer,
    message,
    system,
    user,
)
from pipelines.chat.prompts.template_traits import (
    EFFORTS,
    LEVELS,
    SWITCHES,
    TOOL_VARIABLES,
    USUAL_LEVELS,
    CallTraits,
    EffortTraits,
    IdForm,
    TemplateTraits,
    ToolTraits,
)
from pipelines.chat.syntax.families import SHOWN_ARGUMENTS, SHOWN_NAME
from pipelines.chat.syntax.known import ALL_THOUGHTS

CLOSINGS: Final = tuple(thoughts.closing for thoughts in ALL_THOUGHTS)
LONGEST_MARK: Final = 40  # characters
CUT_MARK: Final = re.compile(r"<[^<>\s]*\Z")  # without its end
OWN_IDS: Final = ("call_0123456789abcdef01234567", "call_89abcdef0123456789abcdef")
SHORT_IDS: Final = ("abcDEF123", "abcDEF456")


def find_traits(render: Render, variables: frozenset[str], *, with_tools: bool, prefer_parts: bool) -> TemplateTraits:
    """Render probes with the template, and return what it takes: roles, content parts, tools, calls and thoughts."""
    prober = Prober(render, TemplateTraits(variables=variables), with_tools=with_tools)
    if with_tools and not _find_tools(prober, prefer_parts):
        return prober.traits
    if not with_tools and (problem := _find_content(prober, prefer_parts)):
        return replace(prober.traits, problem=problem)
    _find_instructions(prober)
    _find_turns(prober)
    _find_loops(prober)
    _find_thinking(prober)
    return prober.traits


def _find_content(prober: Prober, prefer_parts: bool) -> str | None:
    """Find how content is written, and whether the variable `tools` may be there. Returns why neither works."""
    problem = "its text is not in the prompt"
    for parts in (prefer_parts, not prefer_parts):
        prompts = {}
        for unset in (False, True):
            prober.set_traits(parts=parts, unset_tools=unset)
            try:
                if "qza" in (prompt := prober.text(user("qza"))) and not _is_dump(prompt, "text"):
                    prompts[unset] = prompt
            except TemplateRefused as error:
                problem = str(error)
        if prompts:  # a template that mentions tools where there are none writes more
            prober.set_traits(unset_tools=min(prompts, key=lambda unset: len(prompts[unset])))
            return None
    prober.set_traits(parts=prefer_parts, unset_tools=False)
    return problem


def _find_tools(prober: Prober, prefer_parts: bool) -> bool:
    """Find where tools are shown, if they are."""
    for parts, place in product((prefer_parts, not prefer_parts), _possible_tool_traits()):
        prober.set_traits(parts=parts, tools=place)
        prompt = prober.attempt(user("qza"))
        if prompt and all(mark in prompt for mark in ("qza", "qztool", "qzargument")) and not _is_dump(prompt, "text"):
            prober.set_traits(tools=_find_completeness(prober, place))
            return True
    prober.set_traits(parts=prefer_parts, tools=None)
    return False


def _find_completeness(prober: Prober, place: ToolTraits) -> ToolTraits:
    """Return the place with the lowest level of completeness at which the template shows a tool without
    descriptions."""
    tools, prober.tools = prober.tools, BARE_TOOLS
    for level in (0, 1, 2, 3):
        prober.set_traits(tools=replace(place, complete=level))
        prompt = prober.attempt(user("qza")) or ""
        if all(mark in prompt for mark in ("qztool", "qzbare", "qzargument")):
            break
    prober.tools = tools
    return replace(place, complete=level)


def _possible_tool_traits() -> Iterator[ToolTraits]:
    for name in TOOL_VARIABLES:
        yield ToolTraits(name)
    yield ToolTraits("tools", "system")
    yield ToolTraits("functions", "text")


def _is_dump(prompt: str, kind: str) -> bool:
    """Return whether the prompt has a part of content as it was passed, in Python's or JSON's notation."""
    return f"'{kind}'" in prompt or f'"{kind}"' in prompt


def _find_instructions(prober: Prober) -> None:
    """Find which roles give instructions, and where they may stand."""
    takes = {"system": prober.shows(system("qza"), user("qzb")), "developer": _knows_developer(prober)}
    roles = [role for role, taken in takes.items() if taken]
    prober.set_traits(
        system=takes["system"],
        developer=takes["developer"],
        system_alone=prober.shows(system("qza")),
        leads=frozenset(
            (one, other)
            for one, other in product(roles, roles)
            if prober.shows(message(one, "qza"), message(other, "qzb"), user("qzc"))
        ),
        late=frozenset(role for role in roles if all(prober.shows(*late) for late in _late_turns(role))),
    )


def _late_turns(role: str) -> list[list[Message]]:
    """Return conversations in which this role speaks later: behind an answer, behind a user, last."""
    begin, late = [system("qza"), user("qzb")], message(role, "qzlate")
    return [
        [*begin, assistant("qzc"), late, user("qzd")],
        [*begin, late, assistant("qzc"), user("qzd")],
        [*begin, late],
        [user("qzb"), assistant("qzc"), late, user("qzd")],
    ]


def _knows_developer(prober: Prober) -> bool:
    """Return whether developers' messages are shown, in a form of their own: not as a system's, nor as any role's."""
    if not prober.shows(developer("qza"), user("qzb")):
        return False
    known = prober.text(developer("qza"), user("qzb"))
    others = {role: prober.attempt(message(role, "qza"), user("qzb")) for role in ("system", UNKNOWN)}
    return all(
        prompt is None or prompt not in (known, known.replace("developer", role)) for role, prompt in others.items()
    )


def _find_turns(prober: Prober) -> None:
    """Find whether roles must alternate."""
    begin = [user("qza"), assistant("qzb")]
    prober.set_traits(
        user_runs=prober.shows(user("qza"), user("qzb")) and prober.shows(*begin, user("qzc"), user("qzd")),
        assistant_runs=prober.shows(*begin, assistant("qzc"), user("qzd")),
        assistant_first=prober.shows(assistant("qza"), user("qzb")),
    )


def _find_loops(prober: Prober) -> None:
    """Find how calls of tools and their results are taken."""
    calls = _find_calls(prober)
    loop = _call(calls) if calls else [assistant("qzcalled"), *_call(CallTraits())[1:]]
    tool_role = calls is not None or prober.shows(user("qza"), *loop)
    prober.set_traits(
        calls=calls,
        tool_role=tool_role,
        user_after_tool=not tool_role or prober.shows(user("qza"), *loop, user("qzb")),
        system_in_loop=not tool_role or prober.shows(system("qzs"), user("qza"), *loop),
    )


def _find_calls(prober: Prober) -> CallTraits | None:
    """Find how calls are taken, if they are."""
    forms = product(("own", "short", "function"), ("object", "text"))
    for calls in (CallTraits(ids, arguments) for ids, arguments in forms):  # type: ignore[arg-type]
        prompt = prober.attempt(user("qza"), *_call(calls)) or ""
        marks = ("qza", SHOWN_NAME, "qzvaluea", "qzresulta")
        if not all(mark in prompt for mark in marks) or "'city': 'qzvaluea'" in prompt:
            continue  # refused, left out, or an object in Python's own notation
        if "functions.qzcalled:" in prompt:  # the template names calls so itself, or would not name the function else
            again = prober.attempt(user("qza"), *_call(calls), *_call(calls)) or ""
            form: IdForm = "function" if calls.ids == "function" or "functions.qzcalled:1" in again else "position"
            calls = replace(calls, ids=form)
        several = prober.shows(user("qza"), *_call(calls, count=2))
        beside = prober.shows(user("qza"), *_call(calls, text="qzbeside"))
        return replace(calls, several=several, text=beside, shown=_written_call(prober, calls))
    return None


def _written_call(prober: Prober, calls: CallTraits) -> str:
    """Return what the template writes for a message with one call."""
    before, call = prober.attempt(user("qza")) or "", _call(calls)
    prompt = prober.attempt(user("qza"), call[0]) or prober.attempt(user("qza"), *call) or ""
    alike = next((i for i, (one, other) in enumerate(zip(before, prompt, strict=False)) if one != other), len(before))
    cut = CUT_MARK.search(prompt, max(0, alike - LONGEST_MARK), alike)  # `<think>` and `<tool_call>` begin alike
    return prompt[cut.start() if cut else alike :]


def _call(calls: CallTraits, *, count: int = 1, text: str = "") -> list[Message]:
    """Return a message with calls, and their results."""
    functions = ("functions.qzcalled:0", "functions.qzcalled:1")
    own = {"own": OWN_IDS, "short": SHORT_IDS, "function": functions, "position": functions}
    written, results = [], []
    for one, letter in zip(own[calls.ids][:count], "ab", strict=False):
        arguments: Any = {name: value.removesuffix("a") + letter for name, value in SHOWN_ARGUMENTS.items()}
        given = arguments if calls.arguments == "object" else json.dumps(arguments)
        written.append({"id": one, "type": "function", "function": {"name": SHOWN_NAME, "arguments": given}})
        # another name, so that the call's own is known to be shown
        results.append({"role": "tool", "tool_call_id": one, "name": "other", "content": f"qzresult{letter}"})
    return [assistant(text, tool_calls=written), *results]


def _find_thinking(prober: Prober) -> None:
    """Find how thoughts are shown and asked for."""
    for name, (off, on) in SWITCHES.items():
        if prober.attempt(user("qza"), **{name: off}) != prober.attempt(user("qza"), **{name: on}):
            prober.set_traits(switch=name)
            break
    switch = prober.traits.switch
    thinks = {switch: SWITCHES[switch][1]} if switch else {}
    prober.set_traits(effort=_find_effort(prober, thinks), reasoning=_find_reasoning(prober, thinks))
    calls, key = prober.traits.calls, prober.traits.reasoning
    if calls and key and key != "part":
        alone, both = (_turn_with_thoughts(calls, {key: "qzthought"}, text) for text in ("", "qzbeside"))
        taken = prober.shows(user("qza"), *both, **thinks) or not prober.shows(user("qza"), *alone, **thinks)
        prober.set_traits(calls=replace(calls, text_and_thoughts=taken))


def _find_reasoning(prober: Prober, thinks: Mapping[str, Any]) -> str | None:
    calls = prober.traits.calls
    for key in ("reasoning_content", "reasoning", "part"):
        thought = {"content": [{"type": "thinking", "thinking": "qzthought"}, {"type": "text", "text": "qzb"}]}
        fields = thought if key == "part" else {key: "qzthought"}
        histories = [[user("qza"), {**assistant("qzb"), **fields}, user("qzc")]]
        if calls:
            histories.append([user("qza"), *_turn_with_thoughts(calls, fields)])
        for history in histories:
            if prober.shows(*history, **thinks) and not _is_dump(prober.text(*history, **thinks), "thinking"):
                return key
    return None


def _turn_with_thoughts(calls: CallTraits, fields: Mapping[str, Any], text: str = "") -> list[Message]:
    first, *results = _call(calls, text=text)
    return [{**first, **fields}, *results]


def _find_effort(prober: Prober, thinks: Mapping[str, Any]) -> EffortTraits | None:
    """Find by which variable levels of reasoning have an effect, and which."""
    plain = prober.attempt(user("qza"), **thinks)
    for name in EFFORTS:
        shown = {level: prober.attempt(user("qza"), **{**thinks, name: level}) for level in LEVELS}
        if all(prompt == plain for prompt in shown.values()):
            continue
        unknown = prober.attempt(user("qza"), **{**thinks, name: UNKNOWN})
        if unknown is None:
            levels = tuple(level for level, prompt in shown.items() if prompt is not None)
            return EffortTraits(name, levels, switches=plain is not None and plain.rstrip().endswith(CLOSINGS))
        return EffortTraits(name, USUAL_LEVELS if UNKNOWN in unknown else None)
    return None
