"""From the body of a chat completion to a ChatRequest. Rules between several fields are checked here."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pipelines.protocol.chat import ChatSampling, JsonFormat
from server.conversation.turns import write
from server.errors import BadRequest
from server.flows.chat.custom_tools import custom_function
from server.flows.chat.history import ChatHistory, read_turns
from server.flows.chat.request import ChatRequest
from server.flows.chat.tools import (
    check_unique_names,
    function_tool,
    json_format,
    normalise_tools,
    require_known_tool,
    require_tools,
)
from server.schemas.chat import (
    NO_EFFECT,
    TOOLS,
    UNSUPPORTED,
    AllowedChoice,
    ChatBody,
    ChatCustomTool,
    ChatFunction,
    ChatTool,
    ChosenCustomTool,
    ChosenFunction,
    GrammarText,
    JsonObjectFormat,
    JsonSchemaFormat,
    TextByGrammar,
)
from server.schemas.chat_messages import AssistantMessage
from server.schemas.extra_fields import SAMPLED, refuse_unsupported, template_options, unknown_keys
from server.schemas.response_tools import leave_out_hosted_tools
from server.schemas.validation import ignored_fields, validate


def parse_chat(values: dict[str, Any]) -> ChatRequest:
    """Return the request that a body makes. Raises BadRequest for the first invalid field."""
    refuse_unsupported(values, UNSUPPORTED)
    body, left_out = read_chat_body(values)
    _check_messages(body)
    _check_combinations(body)
    choice, allowed = _tool_choice(body)
    written = write(read_turns(body.messages))
    return ChatRequest(
        messages=tuple(written.messages),
        service_tier=None if body.service_tier == "auto" else body.service_tier,
        left_out=(*left_out, *_drawn(body)),
        images=tuple(written.origins),
        tools=tuple(_tool(tool, index) for index, tool in enumerate(body.tools)),
        tool_choice=choice,
        allowed_tools=allowed,
        parallel_tool_calls=body.parallel_tool_calls,
        format=_format(body),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        sampling=ChatSampling(
            temperature=body.temperature,
            top_p=body.top_p,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias={int(token): bias for token, bias in body.logit_bias.items()},
            top_k=body.top_k,
            min_p=body.min_p,
            repetition_penalty=body.repetition_penalty,
            min_tokens=2**31 if body.ignore_eos else body.min_tokens,
            unset=SAMPLED - body.model_fields_set,
        ),
        stop=tuple(body.stop),
        stop_tokens=frozenset(body.stop_token_ids),
        n=body.n,
        seed=body.seed,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        template_options=_template_options(body),
        thinking_budget=body.thinking_token_budget,
        custom_tools=custom_names(body),
        strict_tools=frozenset(
            tool.function.name for tool in body.tools if isinstance(tool, ChatFunction) and tool.function.strict
        ),
        input_grammars={
            tool.custom.name: grammar.definition
            for tool in body.tools
            if isinstance(tool, ChatCustomTool) and (grammar := _grammar(tool)) and grammar.syntax == "lark"
        },
    )


def read_chat_body(values: dict[str, Any]) -> tuple[ChatBody, list[str]]:
    """Return the body, and the paths of what can't be read or run here. Raises BadRequest for the first invalid
    field."""
    values = _with_own_thinking(values)
    shaped, history = {**normalise_tools(values, _nest_function), **_nested_format(values)}, ChatHistory()
    known, tools = leave_out_hosted_tools(shaped, TOOLS)
    messages = history.read(values.get("messages"))
    body = validate(ChatBody, {**known, "messages": messages}, strict=True)
    return body, [*tools, *history.left_out, *unknown_keys(body, known)]


def meant_fields(values: dict[str, Any]) -> dict[str, Any]:
    """Return what is not as by default in a body: by its own name, also what only another server may read."""
    try:
        body, _ = read_chat_body(values)
    except BadRequest:  # the model's own server may read it
        return values
    meant = body.model_dump(mode="json", exclude_defaults=True)
    if (limit := meant.pop("max_completion_tokens", None)) is not None:
        meant["max_tokens"] = limit
    return {name: value for name, value in values.items() if name not in ChatBody.model_fields} | meant


def _nest_function(tool: Any) -> Any:
    """Return the tool with its fields below `function`, where responses have them beside the type."""
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        return tool
    if "function" in tool:
        return {**tool, "type": "function"}
    inner = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": inner} if "name" in tool else tool


def _nested_format(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the format of the answer with its schema below `json_schema`, where responses have it beside the type."""
    sent = values.get("response_format")
    if not isinstance(sent, Mapping) or sent.get("type") != "json_schema" or "json_schema" in sent:
        return {}
    inner = {name: value for name, value in sent.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": inner}} if "schema" in sent else {}


def _with_own_thinking(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with what it says of thoughts in this server's fields: OpenRouter has `reasoning`, DeepSeek and
    GLM `thinking`, Qwen's and SiliconFlow's clouds `enable_thinking` and `thinking_budget`."""
    made = dict(values)
    for name, budget in (("reasoning", "max_tokens"), ("thinking", "budget_tokens")):
        if isinstance(sent := made.get(name), Mapping):
            del made[name]
            made.setdefault("thinking_token_budget", sent.get(budget))
            made.setdefault("reasoning_effort", sent.get("effort"))
            switch = {"enabled": True, "disabled": False}.get(str(sent.get("type")), sent.get("enabled"))
            made.setdefault("enable_thinking", switch)
    made.setdefault("thinking_token_budget", made.pop("thinking_budget", None))
    switch, options = made.pop("enable_thinking", None), made.get("chat_template_kwargs") or {}
    if isinstance(switch, bool) and isinstance(options, Mapping):
        made["chat_template_kwargs"] = {"enable_thinking": switch, **options}
    return {name: value for name, value in made.items() if value is not None or name in values}


def custom_names(body: ChatBody) -> frozenset[str]:
    """Return the names of the body's custom tools."""
    return frozenset(tool.custom.name for tool in body.tools if isinstance(tool, ChatCustomTool))


def ineffective_fields(values: Mapping[str, Any]) -> list[str]:
    """Return the sent fields that are accepted and have no effect."""
    return [*(name for name in NO_EFFECT if values.get(name)), *ignored_fields(ChatBody, _with_own_thinking(values))]


def _check_messages(body: ChatBody) -> None:
    for index, message in enumerate(body.messages):
        if isinstance(message, AssistantMessage) and not (
            message.tool_calls or message.content is not None or message.refusal is not None
        ):
            text = f"Invalid 'messages[{index}]': an assistant's message needs 'content' or 'tool_calls'."
            raise BadRequest(text, param=f"messages[{index}].content", code="missing_required_parameter")


def _check_combinations(body: ChatBody) -> None:
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        message = "'max_tokens' and 'max_completion_tokens' are two names for one limit: send one of them."
        raise BadRequest(message, param="max_tokens", code="invalid_parameter_combination")
    if body.top_logprobs and not body.logprobs:
        message = "'top_logprobs' works with 'logprobs': true only: send it too, or leave both out."
        raise BadRequest(message, param="top_logprobs", code="invalid_parameter_combination")
    if body.stream_options and body.stream_options.include_usage and not body.stream:
        message = "'stream_options' works with 'stream': true only: send it too, or leave both out."
        raise BadRequest(message, param="stream_options", code="invalid_parameter_combination")


def _drawn(body: ChatBody) -> Iterator[str]:
    """Yield the paths of the images of earlier answers: a mark stands for them."""
    for index, message in enumerate(body.messages):
        for position in range(len(message.images or ()) if isinstance(message, AssistantMessage) else 0):
            yield f"messages[{index}].images[{position}]"


def _tool(tool: ChatTool, index: int) -> Mapping[str, Any]:
    if isinstance(tool, ChatCustomTool):
        return custom_function(tool.custom.name, tool.custom.description, _grammar(tool))
    function, param = tool.function, f"tools[{index}].function.parameters"
    return function_tool(function.name, function.description, function.parameters, strict=function.strict, param=param)


def _grammar(tool: ChatCustomTool) -> GrammarText | None:
    return tool.custom.format.grammar if isinstance(tool.custom.format, TextByGrammar) else None


def _template_options(body: ChatBody) -> Mapping[str, Any]:
    enabled = body.reasoning.enabled if body.enable_thinking is None else body.enable_thinking
    thinks = {} if enabled is None else {"enable_thinking": enabled}
    effort = body.reasoning_effort or body.reasoning.effort
    options = template_options(effort, body.verbosity, {**thinks, **body.chat_template_kwargs})
    return options | ({"documents": body.documents} if body.documents else {})


def _name(tool: ChatFunction | ChatCustomTool | ChosenFunction | ChosenCustomTool) -> str:
    return tool.function.name if isinstance(tool, ChatFunction | ChosenFunction) else tool.custom.name


def _tool_choice(body: ChatBody) -> tuple[Literal["none", "auto", "required"], tuple[str, ...]]:
    names = [_name(tool) for tool in body.tools]
    check_unique_names(names, [f"tools[{index}].{tool.type}.name" for index, tool in enumerate(body.tools)])
    match body.tool_choice:
        case ChosenFunction() | ChosenCustomTool() as named:
            return "required", (require_known_tool(_name(named), names),)
        case AllowedChoice(allowed_tools=allowed):
            return allowed.mode, tuple(require_known_tool(_name(tool), names) for tool in allowed.tools)
        case "required":
            require_tools(names)
    return body.tool_choice or "auto", ()


def _format(body: ChatBody) -> JsonFormat | None:
    match body.response_format:
        case JsonObjectFormat():
            return JsonFormat(None)
        case JsonSchemaFormat(json_schema=named):
            field = "response_format"
            return json_format(named.name, named.schema_, strict=named.strict, field=field, param=field)
    return None
