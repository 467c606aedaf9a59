"""A body of Messages as the body of a chat completion. Pure."""

from collections.abc import Mapping
from typing import Any

from server.conversation.turns import write
from server.dialects.anthropic.history import read_turns, readable_messages
from server.dialects.anthropic.schema import (
    UNSUPPORTED,
    AnyChoice,
    AssistantTurn,
    CountBody,
    MessagesBody,
    SystemTurn,
    ThinkingBlock,
    ThinkingTurns,
    UserTurn,
)
from server.errors import BadRequest
from server.schemas.extra_fields import refuse_unsupported

Json = dict[str, Any]
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
FIELDS = {  # a chat completion's -> those of Messages
    "messages": "messages",  # without a path: a system prompt is the first of a chat completion's
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "chat_template_kwargs": "thinking",
    "enable_thinking": "thinking",
    "thinking_token_budget": "thinking.budget_tokens",
}


def without_unsupported(values: Json) -> tuple[Json, list[str]]:
    """Return the values without what can't be read or run here, and the paths of that. Raises BadRequest for what only
    Anthropic's own service has."""
    refuse_unsupported(values, UNSUPPORTED)
    messages, unread = readable_messages(values.get("messages"))
    edits, unknown = _own_edits(values.get("context_management"))
    unread = [*unread, *unknown]
    values = {**values, "tool_choice": _own_choice(values.get("tool_choice")), "context_management": edits}
    tools = values.get("tools")
    if not isinstance(tools, list):
        return {**values, "messages": messages}, unread
    own = [_own_tool(tool) for tool in tools]
    hosted = {index: str(tool["type"]) for index, tool in enumerate(own) if _is_hosted(tool)}
    kept = [tool for tool in own if not _is_hosted(tool)]
    for index, kind in hosted.items():
        if _is_forced(own[index], values.get("tool_choice"), only=not kept):
            message = (
                f"'{kind[:60]}' is a tool of the hosted service, and this server has no such tool. Declare a tool with "
                "an 'input_schema' and run it yourself."
            )
            raise BadRequest(message, param=f"tools[{index}].type", code="unsupported_tool")
    return {**values, "messages": messages, "tools": kept}, [*unread, *(f"tools[{index}]" for index in hosted)]


def _own_edits(sent: Any) -> tuple[Json | None, list[str]]:
    """Return the edits of the conversation that are made here, and the paths of the others."""
    if not isinstance(sent, Mapping) or not isinstance(edits := sent.get("edits"), list):
        return None, ["context_management"] if sent else []
    own = [isinstance(edit, Mapping) and edit.get("type") == "clear_thinking_20251015" for edit in edits]
    others = [f"context_management.edits[{index}]" for index, is_own in enumerate(own) if not is_own]
    return {"edits": [edit for edit, is_own in zip(edits, own, strict=True) if is_own]}, others


def _own_tool(tool: Any) -> Any:
    """Return the tool in this protocol's shape, if it came as OpenAI's has it."""
    if not isinstance(tool, Mapping) or "input_schema" in tool or tool.get("type") != "function":
        return tool
    inner = tool["function"] if isinstance(tool.get("function"), Mapping) else tool
    named = {name: inner[name] for name in ("name", "description", "strict") if name in inner}
    return {**named, "input_schema": inner.get("parameters") or {"type": "object", "properties": {}}}


def _own_choice(choice: Any) -> Any:
    """Return the choice of tools in this protocol's shape, if it came as OpenAI's has it."""
    if isinstance(choice, str):
        return {"type": {"required": "any"}.get(choice, choice)}
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return choice
    inner = choice["function"] if isinstance(choice.get("function"), Mapping) else choice
    return {"type": "tool", "name": inner.get("name")}


def _is_hosted(tool: Any) -> bool:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    return isinstance(kind, str) and kind != "custom"


def _is_forced(tool: Json, choice: Any, *, only: bool) -> bool:
    """Return whether the model must call this tool: it is named, or there is no other to choose from."""
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    return (kind == "tool" and choice.get("name") == tool.get("name")) or (kind == "any" and only)


def to_chat(body: MessagesBody) -> Json:
    """Return the body of the chat completion, without its stop strings. Raises BadRequest."""
    return count_to_chat(body) | _drop_none(
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k or None,
        user=body.metadata.user_id if body.metadata else None,
        thinking_token_budget=body.thinking.budget_tokens if body.thinking else None,
    )


def count_to_chat(body: CountBody) -> Json:
    """Return the fields of a chat that both routes send. Raises BadRequest for a conversation that ends with the
    assistant."""
    if isinstance(body.messages[-1], AssistantTurn):
        message = "An answer can't be begun for the model here: end 'messages' with a message of the user."
        raise BadRequest(message, param="messages", code="unsupported_value")
    choice, output = body.tool_choice, body.output_config
    return _drop_none(
        model=body.model,
        messages=write(read_turns(body.system, _without_old_thoughts(body))).messages,
        tools=[_tool(tool.model_dump()) for tool in body.tools] or None,
        tool_choice=_tool_choice(body),
        parallel_tool_calls=False if choice and choice.disable_parallel_tool_use and body.tools else None,
        response_format=_format(output.format.schema_) if output and output.format else None,
        reasoning_effort=output.effort if output else None,
        chat_template_kwargs={"enable_thinking": body.thinking.type != "disabled"} if body.thinking else None,
    )


def _without_old_thoughts(body: CountBody) -> list[UserTurn | AssistantTurn | SystemTurn]:
    """Return the messages, without the thoughts that the body's edits clear."""
    kept = (
        [edit.keep.value for edit in body.context_management.edits if isinstance(edit.keep, ThinkingTurns)]
        if body.context_management
        else []
    )
    if not kept:
        return body.messages
    thought = [index for index, turn in enumerate(body.messages) if _thoughts(turn)]
    cleared = {*thought[: -min(kept)]}
    return [
        turn.model_copy(update={"content": [block for block in turn.content if not isinstance(block, ThinkingBlock)]})
        if index in cleared
        else turn
        for index, turn in enumerate(body.messages)
    ]


def _thoughts(turn: UserTurn | AssistantTurn | SystemTurn) -> bool:
    return isinstance(turn, AssistantTurn) and any(isinstance(block, ThinkingBlock) for block in turn.content)


def _drop_none(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _tool(tool: Json) -> Json:
    function = _drop_none(
        name=tool["name"], description=tool["description"], parameters=tool["input_schema"], strict=tool["strict"]
    )
    return {"type": "function", "function": function}


def _tool_choice(body: CountBody) -> Any:
    choice = body.tool_choice
    if choice is None:
        return None
    if isinstance(choice, AnyChoice):
        return CHOICES[choice.type] if body.tools or choice.type == "any" else None
    return {"type": "function", "function": {"name": choice.name}}


def _format(schema: Json) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
