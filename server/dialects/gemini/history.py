"""The conversation of a body of generateContent.

`readable_contents` brings parts into this protocol's own words: only what the user says last is refused for what can't
be read in it. All else was said before, and its client can't take it back: earlier contents, and what functions return.
`read_turns` reads the valid contents. Pure.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

from server.conversation.blocks import as_history, as_list, json_text, strict_positions, unreadable_text
from server.conversation.own_words import OwnWords
from server.conversation.turns import Block, Call, Image, Result, Turn
from server.dialects.gemini.schema import CallResultPart, GeminiCallResult, GeminiPart, GenerateBody
from server.errors import BadRequest

Json = dict[str, Any]
ROLES = {"user", "model", "function", "system"}
READ = {"text", "inlineData", "inline_data", "fileData", "file_data", "thought", "thoughtSignature"}
READ |= {"thought_signature", "functionCall", "function_call", "functionResponse", "function_response"}
FILES = ("inlineData", "inline_data", "fileData", "file_data")
KINDS = {"application": "document", "text": "document", "audio": "audio", "video": "video"}


def _text(text: str) -> Json:
    return {"text": text}


def _image(url: str, _: Mapping[str, Any]) -> Json:
    return {"fileData": {"fileUri": url}}


def _own(part: Any) -> Any:
    """Refuse what has a type alone, as every key of a part may be absent. Raises ValueError."""
    if _is_foreign(part):
        raise ValueError
    return part


PART = OwnWords(Annotated[GeminiPart, BeforeValidator(_own)], _text, _image)
RESULT_PART = OwnWords(Annotated[CallResultPart, BeforeValidator(_own)], _text, _image)


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
    listed = as_list(content.get("parts"))
    strict = is_last and role != "model" and not any(_result_of(part) for part in listed)
    made = [_part(part, f"{path}.parts[{number}]", strict, left_out) for number, part in enumerate(listed)]
    return {**content, "parts": made}


def _part(part: Any, path: str, strict: bool, left_out: list[str]) -> Any:
    if result := _result_of(part):
        part = {**part, "functionResponse": _result(result, f"{path}.functionResponse", left_out)}
    block = _as_block(part)
    is_foreign = _is_foreign(block)
    made = PART.read(block, path, left_out, strict=strict and not is_foreign)
    if strict and is_foreign and left_out[-1:] == [path]:
        message = (
            f"'{block['type']}' can't be read: this server's models read text and images. Send its text, or images."
        )
        raise BadRequest(unreadable_text(block) or message, param=path, code="invalid_value")
    return made


def _result(result: Json, path: str, left_out: list[str]) -> Json:
    """Return what a function returned. Other clients send a text, or null, where this protocol has an object."""
    sent, parts = result.get("response"), [_as_block(part) for part in as_list(result.get("parts"))]
    made = RESULT_PART.read_all(parts, f"{path}.parts", left_out)
    kept = {name: value for name, value in result.items() if name != "parts"}
    response = sent if isinstance(sent, Mapping) else {} if sent is None else {"output": json_text(sent)}
    return {**kept, "response": response, **({"parts": made} if made else {})}


def _result_of(part: Any) -> Json | None:
    found = (part.get("functionResponse") or part.get("function_response")) if isinstance(part, Mapping) else None
    return found if isinstance(found, dict) else None


def _is_foreign(part: Any) -> bool:
    """Return whether a part is known by a type, as in other protocols, and by no key of this one."""
    return isinstance(part, Mapping) and "type" in part and not (READ & part.keys())


def _as_block(part: Any) -> Any:
    """Return the part; one that is neither text nor image nor a call as a block whose type is its kind: that of its
    file, or its own name."""
    if not isinstance(part, Mapping) or "type" in part:
        return part
    file = next((part[name] for name in FILES if isinstance(part.get(name), Mapping)), None)
    if file is not None:
        media_type = str(file.get("mimeType") or file.get("mime_type") or "image/")
        kind = KINDS.get(media_type.partition("/")[0])
        return part if kind is None else {"type": kind, "name": file.get("displayName")}
    foreign = [name for name, value in part.items() if isinstance(value, Mapping) and name not in READ]
    return {**part[foreign[0]], "type": foreign[0]} if foreign and not (READ & part.keys()) else part


def read_turns(body: GenerateBody) -> Iterator[Turn | Result]:
    """Yield the turns and results of a valid body. Each result of a function is one of its own, before the user's
    words."""
    if body.system_instruction and any(texts := _blocks(body.system_instruction.parts)):
        yield Turn("system", texts)
    for content in body.contents:
        blocks = _blocks(content.parts)
        if content.role == "model":
            thoughts = [part.text for part in content.parts if part.thought and part.text]
            yield Turn("assistant", blocks, thoughts, [*_calls(content.parts)])
            continue
        results = [part.function_response for part in content.parts if part.function_response]
        yield from map(_read_result, results)
        if blocks or not results:
            yield Turn("system" if content.role == "system" else "user", blocks)


def drawn_images(body: GenerateBody) -> list[str]:
    """Return the paths of the model's images: marks stand for them in a chat."""
    return [
        f"contents[{index}].parts[{number}]"
        for index, content in enumerate(body.contents)
        for number, part in enumerate(content.parts if content.role == "model" else ())
        if _url(part)
    ]


def _blocks(parts: Sequence[GeminiPart | CallResultPart]) -> list[Block]:
    """Return the texts and images of parts."""
    found = [Image(url) if (url := _url(part)) else part.text for part in parts if not getattr(part, "thought", False)]
    return [block for block in found if block is not None]


def _url(part: GeminiPart | CallResultPart) -> str | None:
    if part.inline_data:
        return f"data:{part.inline_data.mime_type};base64,{part.inline_data.data}"
    return part.file_data.file_uri if part.file_data else None


def _calls(parts: Sequence[GeminiPart]) -> Iterator[Call]:
    for part in parts:
        if call := part.function_call:
            yield Call(call.name, json.dumps(call.args, ensure_ascii=False), call.id)


def _read_result(answer: GeminiCallResult) -> Result:
    """Return a function's result: its `output` or its `error`, which Google's documents name, or else its JSON."""
    response, shown = answer.response, _blocks(answer.parts)
    named = next((name for name in ("output", "error") if response.keys() == {name}), None)
    text = json_text(response[named]) if named else json.dumps(response, ensure_ascii=False) if response else ""
    return Result([text, *shown], answer.id, answer.name, failed=named == "error")
