"""A body of generateContent as the body of a chat completion. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from server.conversation.blocks import as_list
from server.conversation.turns import write
from server.dialects.gemini.history import read_turns, readable_contents
from server.dialects.gemini.schema import UNSUPPORTED, FunctionDeclaration, GenerateBody
from server.errors import BadRequest
from server.schemas.extra_fields import refuse_unsupported

Json = dict[str, Any]
IMAGE, TEXT = "IMAGE", "TEXT"
INSTRUCTIONS = ("systemInstruction", "system_instruction")
DECLARATIONS = {"functionDeclarations", "function_declarations"}
INT64 = re.compile(r"\d{1,19}", re.ASCII)
CHOICES = {"ANY": "required", "NONE": "none"}
SCHEMA_NAMES = {"anyOf", "items", "properties", "additionalProperties"}  # whose values are schemas, or have them
FIELDS = {  # a chat completion's, or an image call's -> those of generateContent
    "messages": "contents",
    "prompt": "contents",
    "image": "contents",
    "input": "contents",
    "size": "generationConfig.imageConfig.aspectRatio",
    "image_config": "generationConfig.imageConfig.imageSize",
    "n": "generationConfig.candidateCount",
    "seed": "generationConfig.seed",
    "max_tokens": "generationConfig.maxOutputTokens",
    "response_format": "generationConfig.responseSchema",
    "reasoning_effort": "generationConfig.thinkingConfig",
    "chat_template_kwargs": "generationConfig.thinkingConfig",
    "enable_thinking": "generationConfig.thinkingConfig",
    "thinking_token_budget": "generationConfig.thinkingConfig.thinkingBudget",
    "tool_choice": "toolConfig",
}
READ = frozenset(  # of the body; what else is sent changes nothing
    {"model", "contents", "systemInstruction", "system_instruction", "tools", "toolConfig", "tool_config"}
    | {"generationConfig", "generation_config"}
)
SHARED = {"temperature", "top_p", "presence_penalty", "frequency_penalty", "seed"}  # with a chat completion
TEXT_FIELDS = ("speechConfig", "mediaResolution", "responseLogprobs", "logprobs", "enableAffectiveDialog")


def without_unsupported(values: Json) -> tuple[Json, list[str]]:
    """Return the values without what can't be read or run here, and the paths of that. Raises BadRequest for what only
    Google's own service has."""
    refuse_unsupported(values, UNSUPPORTED)
    contents, unread = readable_contents(values.get("contents"))
    instructions = {name: _instructions(values[name]) for name in INSTRUCTIONS if values.get(name) is not None}
    tools, hosted = _own_tools(values)
    return {**values, "contents": contents, **instructions, **tools}, [*unread, *hosted]


def _instructions(sent: Any) -> Any:
    """Return instructions as a content. A text is one, and so is a part without a list around it."""
    content = {"parts": sent} if isinstance(sent, str) else sent
    return {**content, "parts": as_list(content.get("parts"))} if isinstance(content, Mapping) else content


def _own_tools(values: Json) -> tuple[Json, list[str]]:
    """Return the tools without those that Google's own service runs, and the paths of these: a model merely may call
    them. Raises BadRequest where there is no other and the model must call one."""
    tools = values.get("tools")
    tools = [tools] if isinstance(tools, Mapping) else tools
    if not isinstance(tools, list):
        return {}, []
    hosted = [
        (f"tools[{index}].{str(name)[:60]}", str(name)[:60])
        for index, tool in enumerate(tools)
        for name in (tool if isinstance(tool, Mapping) else ())
        if name not in DECLARATIONS
    ]
    kept = [_declaration(tool) if isinstance(tool, Mapping) else tool for tool in tools]
    if hosted and _must_call(values) and not any(kept):
        message = (
            f"'{hosted[0][1]}' is a tool of the hosted service, and this server has no such tool. Declare functions in "
            "'functionDeclarations' and run them yourself."
        )
        raise BadRequest(message, param=hosted[0][0], code="unsupported_tool")
    return {"tools": kept}, [path for path, _ in hosted]


def _declaration(tool: Mapping[str, Any]) -> Json:
    return {name: value for name, value in tool.items() if name in DECLARATIONS}


def _must_call(values: Json) -> bool:
    config: Any = values.get("toolConfig") or values.get("tool_config")
    for names in (("functionCallingConfig", "function_calling_config"), ("mode",)):
        config = next((config[name] for name in names if isinstance(config, Mapping) and name in config), None)
    return str(config).upper() == "ANY"


def ignored_fields(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the sent fields that change nothing."""
    config = values.get("generationConfig")
    inner = [f"generationConfig.{name}" for name in TEXT_FIELDS if isinstance(config, Mapping) and name in config]
    return [*sorted(values.keys() - READ), *inner]


def asks_for_image(body: GenerateBody) -> bool | None:
    """Return whether the answer shall have images, None where the body names no modalities."""
    modalities = {*body.generation_config.response_modalities} - {"MODALITY_UNSPECIFIED"}
    return IMAGE in modalities if modalities else None


def to_chat(body: GenerateBody, model: str, *, draws: bool = False) -> Json:
    """Return the body of the chat completion, without its stop strings. One that `draws` keeps the model's images."""
    config = body.generation_config
    functions = [function for tool in body.tools for function in tool.function_declarations]
    thinking = config.thinking_config
    values = {
        "model": model,
        "messages": write(read_turns(body), drawn=draws).messages,
        "n": config.candidate_count if config.candidate_count > 1 else None,
        "max_tokens": config.max_output_tokens,
        "top_k": int(config.top_k) if config.top_k else None,
        **config.model_dump(include=SHARED),
        "tools": [_tool(function) for function in functions] or None,
        "tool_choice": _tool_choice(body) if functions else None,
        "response_format": _format(body),
        "reasoning_effort": thinking.thinking_level.lower() if thinking and thinking.thinking_level else None,
        "thinking_token_budget": thinking.thinking_budget if thinking and (thinking.thinking_budget or 0) > 0 else None,
        "chat_template_kwargs": {"enable_thinking": thinking.thinking_budget != 0}
        if thinking and thinking.thinking_budget is not None
        else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _tool(function: FunctionDeclaration) -> Json:
    schema = function.parameters_json_schema or json_schema(function.parameters)
    fields = {"name": function.name, "description": function.description, "parameters": schema}
    return {"type": "function", "function": {name: value for name, value in fields.items() if value is not None}}


def _tool_choice(body: GenerateBody) -> Any:
    config = body.tool_config.function_calling_config if body.tool_config else None
    if config is None:
        return None
    mode = CHOICES.get(config.mode, "auto")
    if not config.allowed_function_names or mode == "none":
        return mode
    named = [{"type": "function", "function": {"name": name}} for name in config.allowed_function_names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


def _format(body: GenerateBody) -> Json | None:
    config = body.generation_config
    schema = config.response_json_schema or json_schema(config.response_schema)
    if schema is not None:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return {"type": "json_object"} if config.response_mime_type == "application/json" else None


def json_schema(schema: Any) -> Any:
    """Return the JSON schema of an OpenAPI schema of this protocol, whose types are in capitals and may be nullable."""
    if isinstance(schema, list):
        return [json_schema(inner) for inner in schema]
    if not isinstance(schema, Mapping):
        return schema
    made: Json = {}
    for name, value in schema.items():
        if name == "type" and isinstance(value, str):
            made["type"] = value.lower()
        elif name == "properties" and isinstance(value, Mapping):
            made["properties"] = {key: json_schema(inner) for key, inner in value.items()}
        elif name in {"minItems", "maxItems", "minLength", "maxLength"} and isinstance(value, str):
            made[name] = int(value) if INT64.fullmatch(value) else value  # protobuf writes it as text
        elif name == "any_of":
            made["anyOf"] = json_schema(value)
        elif name not in {"nullable", "propertyOrdering", "property_ordering", "example"}:
            made[name] = json_schema(value) if name in SCHEMA_NAMES else value
    if schema.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made
