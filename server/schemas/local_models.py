"""Fields that other servers of local models have beside OpenAI's."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

RESERVED = frozenset(  # what the server itself passes to a template, or to the tokenizer that renders it
    {"messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"}
    | {"continue_final_message", "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length"}
    | {"return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs"}
    | {"bos_token", "eos_token", "pad_token", "unk_token", "raise_exception", "strftime_now"}
)


def _top_k(value: object) -> object:
    """Return top_k with 0 for all tokens, for which vLLM writes -1."""
    return 0 if value == -1 else value


def _max_tokens(value: object) -> object:
    """Return no limit, for which LM Studio and llama.cpp have -1."""
    return None if value == -1 else value


def _template_options(value: object) -> object:
    for name in value if isinstance(value, Mapping) else ():
        if name in RESERVED:
            raise PydanticCustomError("reserved", "the template gets '{name}' from the server itself", {"name": name})
    return value


TopK = Annotated[int, BeforeValidator(_top_k), Field(ge=0)]
MaxTokens = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_max_tokens)]
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
