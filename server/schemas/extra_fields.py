"""Fields beside those that this server's API has: of OpenAI's hosted service, of other servers of local models, and
keys that nobody knows."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from server.errors import BadRequest
from server.schemas.chat_messages import LenientModel

NO_EFFECT = (  # named in a response header; `service_tier` is told by the answer's own
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "user",
)


# Values of refused fields that ask for nothing, beside those that are empty
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "frame_count": (1,),
    "function_call": ("auto", "none"),
    "moderation": ("auto",),
}
ASK_BY_BEING_THERE = frozenset({"web_search_options", "guided_json"})  # with {} too


def _as_text(value: object) -> str | None:
    """Return any value as the text that the answer repeats."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


Label = Annotated[str | None, BeforeValidator(_as_text)]  # of any type, if documented as a text: it changes nothing


def _read_or(default: object) -> WrapValidator:
    """Return a validator for a field without effect: what it can't be read as, it is not."""

    def read(value: object, validated: ValidatorFunctionWrapHandler) -> object:
        try:
            return validated(value)
        except ValidationError:
            return default

    return WrapValidator(read)


OrNone = _read_or(None)
OrFalse = _read_or(False)
OrEmpty = _read_or({})


ServiceTier = Annotated[
    Literal["auto", "default", "flex", "scale", "priority", "fast"] | None,
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    OrNone,
]


class HostedFields(LenientModel):
    """How the hosted service serves and bills a call. Accepted, since clients send them to every server."""

    service_tier: ServiceTier = None  # the answer has the one in which it was served
    user: Label = None
    safety_identifier: Label = None
    prompt_cache_key: Label = None
    prompt_cache_options: Annotated[dict[str, Any] | None, OrNone] = None
    prompt_cache_retention: Label = None


def refuse_unsupported(values: Mapping[str, Any], unsupported: Mapping[str, str]) -> None:
    """Refuse the first field of `unsupported` that asks for something: raises BadRequest with its advice."""
    for name, advice in unsupported.items():
        if _asks_for_feature(name, values.get(name)):
            message = f"'{name}' is not supported by this server: {advice}."
            raise BadRequest(message, param=name, code="unsupported_parameter")


FORM_FALSE = ("", "false", "0")  # a form has no types


def _asks_for_feature(name: str, value: object) -> bool:
    if value is None or value in NEUTRAL.get(name, ()):
        return False
    if isinstance(value, str) and value.strip().lower() in FORM_FALSE:
        value = False
    return bool(value) or name in ASK_BY_BEING_THERE


RESERVED = frozenset(  # what the server itself passes to a template, or to the tokenizer that renders it
    {"messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"}
    | {"continue_final_message", "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length"}
    | {"return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs"}
    | {"bos_token", "eos_token", "pad_token", "unk_token", "raise_exception", "strftime_now"}
)


def _template_options(value: object) -> object:
    for name in value if isinstance(value, Mapping) else ():
        if name in RESERVED:
            raise PydanticCustomError("reserved", "the template gets '{name}' from the server itself", {"name": name})
    return value


# -1 is vLLM's for all tokens, and LM Studio's and llama.cpp's for no limit
TopK = Annotated[int, BeforeValidator(lambda value: 0 if value == -1 else value), Field(ge=0)]
MaxTokens = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(lambda value: None if value == -1 else value)]
# -1 is Google's for a budget that the model chooses, 0 is none
ThinkingBudget = Annotated[
    Annotated[int, Field(ge=0)] | None, BeforeValidator(lambda value: None if value == -1 else value)
]
MinP = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=10)]
TemplateOptions = Annotated[dict[str, Any], BeforeValidator(_template_options), Field(max_length=32)]


SAMPLED = frozenset(  # fields of the sampling for which checkpoints have defaults
    {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
)
EFFORT = {"reasoning_effort", "enable_thinking"}  # most templates have one of them


def template_options(effort: str | None, verbosity: str | None, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the template: OpenAI's fields by the names that templates have for them. A variable that
    was sent as a template option wins."""
    known: dict[str, Any] = {}
    if effort is not None:
        known |= {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    if verbosity is not None:
        known["verbosity"] = verbosity
    return {**known, **sent}


def ignored_options(unused: tuple[str, ...], fields: Mapping[str, str]) -> list[str]:
    """List the fields of the request whose variables the template does not know. `fields` has a variable's field;
    others are template options. `reasoning_effort` counts as used if either of its variables is."""
    left = set(unused)
    if len(left & EFFORT) == 1:
        left -= EFFORT
    named = [fields.get(name, f"chat_template_kwargs.{name}") for name in unused if name in left]
    return list(dict.fromkeys(named))


MAX_KEYS = 20  # that are named: a header has an end
MAX_NAME = 60
TAGS = ("type", "role")
# of this server's answers, or of others: clients send them back
OWN = {"annotations", "logprobs", "signature", "thoughtSignature", "thought_signature"}


def unknown_keys(body: BaseModel, sent: Mapping[str, Any]) -> list[str]:
    """Return the paths of the unknown keys of `sent`, from which `body` was made, below its own fields. Each is named
    where it first stands: clients add the same to every message."""
    found: dict[str, str] = {}  # by the path without numbers
    for general, path in _walk_fields(body, sent, "", ""):
        if len(found) == MAX_KEYS:
            break
        found.setdefault(general, path)
    return list(found.values())


def _walk(value: Any, sent: Any, general: str, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, BaseModel) and isinstance(sent, Mapping):
        if not _is_translated(value, sent):
            known = {alias for name, info in type(value).model_fields.items() for alias in _names(name, info)}
            for name, one in sent.items():
                if name not in known | OWN and one is not None and len(name) <= MAX_NAME:
                    yield f"{general}.{name}", f"{path}.{name}"
            yield from _walk_fields(value, sent, f"{general}.", f"{path}.")
    elif isinstance(value, list) and isinstance(sent, list) and len(value) == len(sent):
        for index, (one, of) in enumerate(zip(value, sent, strict=True)):
            yield from _walk(one, of, f"{general}[]", f"{path}[{index}]")


def _walk_fields(model: BaseModel, sent: Mapping[str, Any], general: str, path: str) -> Iterator[tuple[str, str]]:
    for name, info in type(model).model_fields.items():
        for alias in _names(name, info):
            if alias in sent:
                yield from _walk(getattr(model, name), sent[alias], f"{general}{alias}", f"{path}{alias}")


def _names(name: str, info: FieldInfo) -> set[str]:
    """Return the names by which a field may be sent."""
    choices = info.validation_alias.choices if isinstance(info.validation_alias, AliasChoices) else ()
    return {name, *filter(None, [info.alias]), *(each for each in choices if isinstance(each, str))}


def _is_translated(value: BaseModel, sent: Mapping[str, Any]) -> bool:
    """Return whether the object came in the words of another protocol, or a text stands for it."""
    return any(sent.get(tag) is not None and sent[tag] != getattr(value, tag, None) for tag in TAGS)
