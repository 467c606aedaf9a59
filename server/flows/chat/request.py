"""One chat completion as it was asked, and the job it becomes."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.catalog.images import Catalog
from pipelines.protocol.chat import ChatJob, ChatSampling, ChatSpec, JsonFormat, Message
from pipelines.protocol.images import Picture
from server.errors import BadRequest
from server.flows.references import Reference

MAX_SEED = 2**53  # seeds that survive JSON in every language
MAX_IMAGES = 32


@dataclass(frozen=True, slots=True)
class ChatCall:
    """The fields of a request that is sound by itself; what its model can do is not yet looked at."""

    model: str | None
    messages: tuple[Message, ...]
    images: tuple[Reference, ...]
    tools: tuple[Mapping[str, Any], ...]
    tool_choice: Literal["none", "auto", "required"]
    allowed_tools: tuple[str, ...]
    parallel_tool_calls: bool
    format: JsonFormat | None
    max_tokens: int | None
    sampling: ChatSampling
    stop: tuple[str, ...]
    n: int
    seed: int | None
    logprobs: bool
    top_logprobs: int
    stream: bool
    include_usage: bool


def check_abilities(call: ChatCall, spec: ChatSpec, catalog: Catalog) -> None:
    """Refuse what this model can't do, by field. Raises BadRequest."""
    if not spec.tools:
        able = _able(catalog, "tools")
        if call.tools:
            message = f"'tools' is not supported with this model; models here that call tools: {able}."
            raise BadRequest(message, param="tools", code="unsupported_parameter")
        for index, said in enumerate(call.messages):
            if said["role"] == "tool" or said.get("tool_calls"):
                message = f"This model can't read messages about tool calls; models here that can: {able}."
                raise BadRequest(message, param=f"messages[{index}]", code="unsupported_parameter")
    if call.images and not spec.vision:
        able = _able(catalog, "vision")
        message = f"This model does not see images; models here that do: {able}. Send text parts alone."
        raise BadRequest(message, param=call.images[0].field, code="unsupported_parameter")
    if len(call.images) > MAX_IMAGES:
        message = f"Invalid 'messages': too many images. Expected at most {MAX_IMAGES}, but got {len(call.images)}."
        raise BadRequest(message, param="messages", code="array_above_max_length")


def to_job(call: ChatCall, spec: ChatSpec, job_id: str, images: tuple[Picture, ...], time_limit_s: float) -> ChatJob:
    """The job, in which nothing is left to default."""
    return ChatJob(
        id=job_id,
        checkpoint=spec,
        messages=call.messages,
        seed=secrets.randbelow(MAX_SEED) if call.seed is None else call.seed % 2**63,
        time_limit_s=time_limit_s,
        images=images,
        tools=call.tools,
        tool_choice=call.tool_choice,
        allowed_tools=call.allowed_tools,
        parallel_tool_calls=call.parallel_tool_calls,
        format=call.format,
        max_tokens=2**31 if call.max_tokens is None else min(call.max_tokens, 2**31),
        sampling=call.sampling,
        stop=call.stop,
        n=call.n,
        logprobs=call.logprobs,
        top_logprobs=call.top_logprobs,
    )


def _able(catalog: Catalog, ability: Literal["tools", "vision"]) -> str:
    served = catalog.chat.models.values()
    able = [model.name for model in served if isinstance(model.source, ChatSpec) and getattr(model.source, ability)]
    return ", ".join(able) or "none"
