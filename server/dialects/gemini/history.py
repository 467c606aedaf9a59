"""The contents of a body, with a text for every part that can't be read.

Only what the user says last is refused for what can't be read in it. All else was said before, and its client can't
take it back: earlier contents, and what functions return. Pure.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from server.dialects.gemini.schema import CallResultPart, GeminiPart
from server.errors import BadRequest
from server.schemas.blocks import as_history, as_list, fits, json_text, placeholder_text, strict_positions

Json = dict[str, Any]
PART: TypeAdapter[Any] = TypeAdapter(GeminiPart)
RESULT_PART: TypeAdapter[Any] = TypeAdapter(CallResultPart)
ROLES = {"user", "model", "function", "system"}
READ = {"text", "inlineData", "inline_data", "fileData", "file_data", "thought", "thoughtSignature"}
READ |= {"thought_signature", "functionCall", "function_call", "functionResponse", "function_response"}
FILES = (("inlineData", "inline_data"), ("fileData", "file_data"))
KINDS = {"application": "document", "text": "document", "audio": "audio", "video": "video"}


def readable_contents(contents: object) -> tuple[object, list[str]]:
    """Return the contents, and the paths of what a text stands for. A text is one content, a single object too. What
    is no list of objects is left to the validation. Raises BadRequest for a file that the user sends last and that no
    model here reads."""
    listed = [{"parts": [{"text": contents}]}] if isinstance(contents, str) else contents
    listed = [listed] if isinstance(listed, Mapping) else listed
    if (history := as_history(listed)) is None:
        return contents, []
    roles = [each.get("role") for each in history]
    strict = strict_positions([role in {"user", None} for role in roles], [role == "model" for role in roles])
    left_out: list[str] = []
    return [_content(each, index, index in strict, left_out) for index, each in enumerate(history)], left_out


def _content(content: Json, index: int, is_last: bool, left_out: list[str]) -> Json:
    path, role = f"contents[{index}]", content.get("role") or "user"
    if role not in ROLES and not is_last:
        left_out.append(f"{path}.role")
        content = {**content, "role": "user"}
    parts = content.get("parts")
    if isinstance(parts, str):
        parts = [{"text": parts}]
    listed = as_list(parts)
    strict = is_last and role != "model" and not any(_result_of(part) for part in listed)
    made = [_part(part, f"{path}.parts[{number}]", strict, left_out) for number, part in enumerate(listed)]
    return {**content, "parts": made}


def _part(part: Any, path: str, strict: bool, left_out: list[str]) -> Any:
    if isinstance(part, str):
        return {"text": part}
    if result := _result_of(part):
        return {**part, "functionResponse": _result(result, f"{path}.functionResponse", left_out)}
    kind = _kind(part)
    if kind is None and fits(PART, part):
        return part
    if strict:
        if kind is not None:
            message = f"'{kind}' can't be read: this server's models read text and images. Send its text, or images."
            raise BadRequest(message, param=path, code="invalid_value")
        return part
    left_out.append(path)
    return {"text": placeholder_text(_as_block(part, kind))}


def _result(result: Json, path: str, left_out: list[str]) -> Json:
    """Return what a function returned. Other clients send a text, or null, where this protocol has an object."""
    sent, parts = result.get("response"), []
    for number, part in enumerate(as_list(result.get("parts"))):
        if _kind(part) is None and fits(RESULT_PART, part):
            parts.append(part)
        else:
            left_out.append(f"{path}.parts[{number}]")
    kept = {name: value for name, value in result.items() if name != "parts"}
    response = sent if isinstance(sent, Mapping) else {} if sent is None else {"result": json_text(sent)}
    return {**kept, "response": response, **({"parts": parts} if parts else {})}


def _result_of(part: Any) -> Json | None:
    found = (part.get("functionResponse") or part.get("function_response")) if isinstance(part, Mapping) else None
    return found if isinstance(found, dict) else None


def _kind(part: Any) -> str | None:
    """Return what a part is that is neither text nor image nor a call: the kind of its file, or its own name."""
    if not isinstance(part, Mapping):
        return None
    for names in FILES:
        file = part.get(names[0]) or part.get(names[1])
        if isinstance(file, Mapping):
            media_type = str(file.get("mimeType") or file.get("mime_type") or "image/")
            return KINDS.get(media_type.partition("/")[0])
    foreign = [name for name, value in part.items() if isinstance(value, Mapping) and name not in READ]
    return foreign[0] if foreign and not (READ & part.keys()) else None


def _as_block(part: Any, kind: str | None) -> Any:
    """Return the part as a block whose type is its kind."""
    inner = part.get(kind) if isinstance(part, Mapping) and kind else None
    if isinstance(inner, Mapping):
        return {**inner, "type": kind}
    file = next((part[name] for names in FILES for name in names if isinstance(part, Mapping) and name in part), None)
    name = file.get("displayName") if isinstance(file, Mapping) else None
    return {"type": kind or "part", **({"name": name} if isinstance(name, str) else {})}
