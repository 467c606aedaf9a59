"""Fields of OpenAI's own service: those that change nothing here, and those that are refused by name."""

from collections.abc import Mapping
from typing import Any, Literal

from server.errors import BadRequest
from server.schemas.chat_messages import Shape


class HostedFields(Shape):
    """How the hosted service serves and bills a call. Taken, since clients send them to every server."""

    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None  # the answer says which
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None


def refuse_unsupported(values: Mapping[str, Any], unsupported: Mapping[str, str]) -> None:
    """Raises BadRequest for a field that is known and not to be had, with what to do instead."""
    for name, instead in unsupported.items():
        if values.get(name) is not None:
            message = f"'{name}' is not supported by this server: {instead}."
            raise BadRequest(message, param=name, code="unsupported_parameter")
