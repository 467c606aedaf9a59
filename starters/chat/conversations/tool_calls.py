"""Calls of a user's functions: known ones, and ones with invented names and arguments."""

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from starters.chat.conversations import words
from starters.chat.conversations.functions import FUNCTIONS, Argument, Function, Maker, as_text, json_type
from starters.chat.conversations.script import Script
from starters.chat.conversations.words import chance, invented_word, phrase, pick

CALL_VERBS: Final = (
    "call", "Call", "use", "run", "execute", "Invoke", "do", "Try", "trigger", "Please call", "please use",
    "Can you run", "Could you call", "I want you to use", "now run", "go and call", "perform", "Start", "apply",
    "I need you to run",
)  # fmt: skip
CALL_FRAMES: Final = (
    "{f} with {a}", "{f} with {a}.", "{f}: {a}", "{f} using {a}", "{f}, {a}", "the {f} function, {a}",
    "the tool {f} with {a}", "{f} for {a}", "{f} and give it {a}", "{f} {a}",
)  # fmt: skip
CALLS_BY_NAME: Final = (  # {f} the function, {a} the arguments with their values
    "{f}: {a}", "{f} {a}", "{f}, {a}", "{f}({a})", "{f} with {a} please", "I need {f} with {a}",
    "Can you call {f}? {a}", *(f"{lead} {called}" for lead in CALL_VERBS for called in CALL_FRAMES),
)  # fmt: skip
ARGUMENT_FORMATS: Final = (
    "{n} {v}",
    "{n} {v}",
    "{n}={v}",
    "{n}: {v}",
    "{n} = {v}",
    "{n} set to {v}",
    "{n} is {v}",
    'the {n} "{v}"',
)
REQUESTS: Final = (  # {} an order such as "set volume"
    "{}", "Please {}", "can you {}", "I want to {}", "Could you {}", "now {}", "help me {}", "let's {}", "I need to {}",
    "would you {}", "go ahead and {}", "I'd like you to {}",
)  # fmt: skip
ORDERS: Final = tuple(  # {f} "set volume", {t} "volume", {a} as above, {v} the only value
    request.format("{f}") + given
    for request in REQUESTS
    for given in (" with {a}", ", {a}", ": {a}", " {a}", " using {a}", "? {a}")
)
ONE_VALUE_ORDERS: Final = tuple(
    request.format(order)
    for request in REQUESTS
    for order in (
        "{f} {v}", "{verb} the {t} {v}", "{verb} {t} to {v}", "{verb} the {t} to {v}.", "{verb} the {t}: {v}",
        "{verb} a {t} for {v}", "{verb} my {t} {v}, please", "{verb} the {t} with {v}",
    )
)  # fmt: skip
RESULTS_TEXT: Final = "Result: {}."
FAILED: Final = "That failed: {}."
NO_FUNCTION: Final = "I can't do that without a tool for it."
TEXTS: Final[tuple[Maker, ...]] = (phrase, words.person, words.city, words.code, invented_word, words.any_word)
VALUES: Final[tuple[Maker, ...]] = (
    words.whole, words.decimal, phrase, words.any_word, words.person, words.city, words.code,
)  # fmt: skip
POLITE_FRAMES: Final = (  # around whole sentences
    "Hi! {}", "hello, {}", "Hey, {}", "ok, {}", "OK. {}", "now {}", "Thanks. {}", "Great! {}", "{} Thanks!",
    "{} please", "please: {}", "One more thing: {}", "and {}", "next, {}", "So, {}", "Listen: {}", "Hmm. {}",
    "{} Quickly, please.", "well, {}", "Question: {}", "I have a wish: {}", "{} now", "right, {}", "also: {}",
)  # fmt: skip
ARITHMETIC: Final = frozenset({"add", "multiply", "calculate"})


@dataclass(frozen=True, slots=True)
class Declared:
    """A function as declared in the request's tools."""

    schema: dict[str, Any]
    name: str
    names: dict[str, str]
    source: Function | None
    slots: dict[str, Argument]

    @property
    def counts(self) -> bool:
        """Whether it does arithmetic."""
        return self.source is not None and self.source.names[0] in ARITHMETIC


def declare(rng: np.random.Generator) -> Declared:
    """A known function, or an invented one."""
    if chance(rng, 0.65):
        function = pick(rng, FUNCTIONS)
        name, slots = pick(rng, function.names), function.slots
        if chance(rng, 0.12):
            name = invented_word(rng)
        description = function.description if chance(rng, 0.8) else ""
        return _declared(rng, name, description, slots, function)
    name = f"{pick(rng, words.VERBS)}_{pick(rng, words.THINGS)}" if chance(rng, 0.6) else invented_word(rng)
    if chance(rng, 0.15):
        name = f"{invented_word(rng)}_{invented_word(rng)}"
    count = int(rng.choice([1, 2, 3], p=(0.45, 0.38, 0.17)))
    names = {invented_word(rng) if chance(rng, 0.25) else pick(rng, words.ATTRIBUTES) for _ in range(count)}
    description = phrase(rng, 5) if chance(rng, 0.3) else ""
    return _declared(rng, name, description, {n: _any_slot(rng, n) for n in sorted(names)}, None)


def call_function(script: Script, functions: list[Declared]) -> None:
    """A request that one of them answers."""
    chosen = pick(script.rng, functions)
    values = {key: slot.make(script.rng) for key, slot in chosen.slots.items()}
    script.user(_request(script, chosen, values))
    script.call("function", chosen.name, {chosen.names[key]: value for key, value in values.items()})
    if chance(script.rng, 0.65):
        _tool_result(script)


def ask_without_function(script: Script, functions: list[Declared]) -> None:
    """A request that none of them answers."""
    present = {id(function.source) for function in functions}
    absent = [
        f for f in FUNCTIONS if id(f) not in present and f.names[0] not in ARITHMETIC | {"translate", "get_weather"}
    ]
    function = pick(script.rng, absent)
    values = {key: as_text(slot.make(script.rng)) for key, slot in function.slots.items()}
    script.user(script.wording_with_unknown_word(function.wordings).format(**values))
    script.answer("unknown", NO_FUNCTION)


def _declared(
    rng: np.random.Generator, name: str, description: str, slots: dict[str, Argument], source: Function | None
) -> Declared:
    names: dict[str, str] = {}
    for key, slot in slots.items():
        free = [n for n in slot.names if n not in names.values()]
        names[key] = pick(rng, free) if free else key
    properties = {names[key]: json_type(slot) for key, slot in slots.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": parameters}
    return Declared({"type": "function", "function": function}, name, names, source, slots)


def _any_slot(rng: np.random.Generator, name: str) -> Argument:
    match int(rng.integers(8)):
        case 0 | 1:
            return Argument((name,), "integer", words.whole)
        case 2:
            return Argument((name,), "number", words.decimal)
        case 3:
            choices = tuple(dict.fromkeys(words.any_word(rng) for _ in range(2 + int(rng.integers(2)))))
            return Argument((name,), "enum", lambda rng: pick(rng, choices), choices)
        case 4:
            return Argument((name,), "boolean", lambda rng: chance(rng, 0.5))
        case _:
            return Argument((name,), "string", pick(rng, TEXTS))


def _request(script: Script, chosen: Declared, values: dict[str, Any]) -> str:
    if chosen.source is not None and chance(script.rng, 0.9):
        filled = {key: as_text(value) for key, value in values.items()}
        text = script.wording_with_unknown_word(chosen.source.wordings).format(**filled)
        text = text[0].lower() + text[1:] if chance(script.rng, 0.15) else text
        return script.wording(POLITE_FRAMES).format(text) if chance(script.rng, 0.3) else text
    rng = script.rng
    pair = script.wording(ARGUMENT_FORMATS)
    joint = pick(rng, (" and ", ", ", ", "))
    pairs = joint.join(pair.format(n=chosen.names[key], v=_spell(rng, value)) for key, value in values.items())
    verb, _, thing = chosen.name.partition("_")
    if not thing or chance(rng, 0.4):
        return script.wording_with_unknown_word(CALLS_BY_NAME).format(f=chosen.name, a=pairs)
    spoken = f"{verb} {thing.replace('_', ' ')}"
    if len(values) == 1 and chance(rng, 0.6):
        value = _spell(rng, next(iter(values.values())))
        text = script.wording_with_unknown_word(ONE_VALUE_ORDERS).format(
            f=spoken, verb=verb, t=thing.replace("_", " "), v=value
        )
    else:
        text = script.wording_with_unknown_word(ORDERS).format(f=spoken, a=pairs)
    return text[0].upper() + text[1:] if chance(rng, 0.3) else text


def _spell(rng: np.random.Generator, value: Any) -> str:
    if isinstance(value, bool):
        return pick(rng, ("true", "yes", "on") if value else ("false", "no", "off"))
    return str(value)


def _tool_result(script: Script) -> None:
    """What the function returns, and the answer about it."""
    rng = script.rng
    kind = int(rng.integers(6))
    if kind == 0:
        problem = phrase(rng, 3)
        script.result(pick(rng, ('{{"error": "{}"}}', "error: {}", "Error: {}")).format(problem))
        script.answer("result", FAILED.format(problem))
    elif kind <= 3:
        pairs = {_field(rng): _value(rng) for _ in range(1 + int(rng.integers(2)))}
        script.result(json.dumps(pairs))
        script.answer("result", RESULTS_TEXT.format(json.dumps(pairs)))
    else:
        text = str(_value(rng))
        script.result(text)
        script.answer("result", RESULTS_TEXT.format(text))


def _field(rng: np.random.Generator) -> str:
    return (
        invented_word(rng)
        if chance(rng, 0.2)
        else pick(rng, (*words.ATTRIBUTES, "temperature", "result", "ok", "total"))
    )


def _value(rng: np.random.Generator) -> Any:
    return pick(rng, VALUES)(rng)
