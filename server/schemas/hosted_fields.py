"""Fields of OpenAI's hosted service: those that have no effect here, and those that are refused by name."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

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


def _asks_for_feature(name: str, value: object) -> bool:
    if value is None or value in NEUTRAL.get(name, ()):
        return False
    return bool(value) or name in ASK_BY_BEING_THERE
