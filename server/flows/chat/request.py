"""A validated chat completion request, and what it becomes: an engine's job, or a body for another server."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.protocol.chat import ChatJob, ChatSampling, ChatSpec, JsonFormat, Message
from pipelines.protocol.images import RawImage
from pipelines.protocol.tiers import ServiceTier
from server.catalog.images import Catalog
from server.errors import BadRequest
from server.flows.chat.tools import find_strict_violation
from server.flows.references import Reference
from server.schemas.extra_fields import SAMPLED

Json = dict[str, Any]
MAX_RANDOM_SEED = 2**53  # seeds that survive JSON in every language
MAX_IMAGES = 32
ENGINE_PATH = re.compile(r"tools\[(\d+)\]\.(?:function|format)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request to a chat model: a conversation, and how it is answered. `build_job` makes an engine's job of it,
    `to_body` another server's body. `check_capabilities` says whether the model supports everything in
    it."""

    messages: tuple[Message, ...]
    images: tuple[Reference, ...] = ()
    decoded_images: tuple[RawImage, ...] = ()  # decoded, in the order of the messages' image_url parts
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: Literal["none", "auto", "required"] = "auto"
    allowed_tools: tuple[str, ...] = ()
    parallel_tool_calls: bool = True
    format: JsonFormat | None = None
    max_tokens: int | None = None
    sampling: ChatSampling = field(default_factory=ChatSampling)
    service_tier: str | None = None  # that is asked for; the key says whether it is served so
    left_out: tuple[str, ...] = ()  # paths of what a text stands for, or nothing
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    n: int = 1
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    truncate: bool = False  # leave out the oldest messages if the conversation is too long
    include_usage: bool = False  # in the last chunk of a stream
    template_options: Mapping[str, Any] = field(default_factory=dict)
    thinking_budget: int | None = None  # tokens of thoughts
    custom_tools: frozenset[str] = frozenset()  # names of functions that the caller knows as custom tools
    strict_tools: frozenset[str] = frozenset()  # names of functions whose schemas are enforced whole
    input_grammars: Mapping[str, str] = field(default_factory=dict)  # by their names, in Lark

    def request_path(self, param: str | None) -> str | None:
        """Return the request's path of a field that an engine calls `tools[i].function...`, if that is a custom
        tool."""
        found = ENGINE_PATH.match(param or "")
        if found is None or self.tools[int(found[1])]["function"]["name"] not in self.custom_tools:
            return param
        return f"tools[{found[1]}].custom.format"


def check_capabilities(request: ChatRequest, spec: ChatSpec, catalog: Catalog) -> None:
    """Refuse fields that this model does not support. Raises BadRequest for the first one."""
    if request.tools and not spec.tools:  # calls of its history, by another model, are texts for its template
        capable = _models_with(catalog, "tools")
        text = f"'tools' is not supported with this model; models here that call tools: {capable}."
        raise BadRequest(text, param="tools", code="unsupported_parameter")
    if request.images and not spec.vision:
        capable = _models_with(catalog, "vision")
        text = f"This model does not see images; models here that do: {capable}. Send text parts alone."
        raise BadRequest(text, param=request.images[0].field, code="unsupported_parameter")
    if len(request.images) > MAX_IMAGES:
        text = f"Invalid 'messages': too many images. Expected at most {MAX_IMAGES}, but got {len(request.images)}."
        raise BadRequest(text, param="messages", code="array_above_max_length")


def build_job(
    request: ChatRequest,
    spec: ChatSpec,
    job_id: str,
    time_limit_s: float,
    cache_scope: str = "",
    tier: ServiceTier = "default",
) -> ChatJob:
    """Return the job, in which every value is explicit: a seed is drawn if the request has none."""
    return ChatJob(
        id=job_id,
        checkpoint=spec,
        messages=request.messages,
        seed=secrets.randbelow(MAX_RANDOM_SEED) if request.seed is None else request.seed % 2**63,
        time_limit_s=time_limit_s,
        images=request.decoded_images,
        tools=request.tools,
        tool_choice=request.tool_choice,
        allowed_tools=request.allowed_tools,
        parallel_tool_calls=request.parallel_tool_calls,
        format=request.format,
        max_tokens=2**31 if request.max_tokens is None else min(request.max_tokens, 2**31),
        sampling=request.sampling,
        stop=request.stop,
        stop_tokens=request.stop_tokens,
        n=request.n,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        truncate=request.truncate,
        template_options=request.template_options,
        thinking_budget=request.thinking_budget,
        strict_tools=request.strict_tools,
        input_grammars=request.input_grammars,
        cache_scope=cache_scope,
        tier=tier,
    )


def to_body(request: ChatRequest) -> Json:
    """Return the body of a chat completion for another server. What the caller did not send is left out: that server
    has defaults of its own, and may not know the field."""
    tools = [
        tool for tool in request.tools if not request.allowed_tools or tool["function"]["name"] in request.allowed_tools
    ]
    sampling = request.sampling
    body: Json = {
        "messages": list(request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: getattr(sampling, name) for name in sorted(SAMPLED - sampling.unset)},
        "max_tokens": request.max_tokens,
        "tools": tools or None,
        "tool_choice": request.tool_choice if tools and request.tool_choice != "auto" else None,
        "parallel_tool_calls": False if tools and not request.parallel_tool_calls else None,
        "response_format": _format(request),
        "logprobs": request.logprobs or None,
        "top_logprobs": request.top_logprobs or None,
        "thinking_token_budget": request.thinking_budget,
        **_template_fields(request),
    }
    return {name: value for name, value in body.items() if value is not None}


def _template_fields(request: ChatRequest) -> Json:
    """Return OpenAI's fields as they are, and template options as such."""
    options = dict(request.template_options)
    known = {name: options.pop(name, None) for name in ("reasoning_effort", "verbosity")}
    if known["reasoning_effort"] is not None:
        options.pop("enable_thinking", None)  # it says the same
    return {**known, "chat_template_kwargs": options or None}


def _format(request: ChatRequest) -> Json | None:
    if request.format is None:
        return None
    schema = request.format.schema
    if schema is None:
        return {"type": "json_object"}
    strict = find_strict_violation(schema) is None  # the upstream refuses `strict` with any other schema
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


def _models_with(catalog: Catalog, capability: Literal["tools", "vision"]) -> str:
    models = catalog.chat.models.values()
    names = [model.name for model in models if getattr(model, capability)]
    return ", ".join(names) or "none"
