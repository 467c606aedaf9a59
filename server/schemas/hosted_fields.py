"""Fields of OpenAI's hosted service: those that have no effect here, and those that are refused by name."""

from collections.abc import Mapping
from typing import Any, Literal

from server.errors import BadRequest
from server.schemas.chat_messages import LenientModel

NO_EFFECT = (  # named in a response header; `service_tier` is told by the answer's own
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "user",
)


class HostedFields(LenientModel):
    """How the hosted service serves and bills a call. Accepted, since clients send them to every server."""

    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None  # answers say "default"
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None


def refuse_unsupported(values: Mapping[str, Any], unsupported: Mapping[str, str]) -> None:
    """Refuse the first field of `unsupported` that was sent: raises BadRequest with its advice."""
    for name, advice in unsupported.items():
        if values.get(name) is not None:
            message = f"'{name}' is not supported by this server: {advice}."
            raise BadRequest(message, param=name, code="unsupported_parameter")
