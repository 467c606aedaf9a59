"""How the model is shown items of tools that other servers ran: calls, and their results as text. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from server.flows.responses.tools import function_name

NO_RESULT = "There is no result."


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call, and its result if that is known. Without `name` there is no call."""

    call_id: str
    name: str | None
    arguments: str
    result: str | None


def read_exchange(body: Mapping[str, Any]) -> Exchange | None:
    """Read the call and the result of an item. None for an item of another kind, or one that says nothing by itself."""
    match body["type"]:
        case "code_interpreter_call":
            logs = [output["logs"] for output in body.get("outputs", ()) if output.get("logs")]
            return _done(body, "code_interpreter", _json({"code": body.get("code", "")}), "\n".join(logs))
        case "file_search_call":
            found = [f"{one.get('filename', '')}: {one.get('text', '')}" for one in body.get("results", ())]
            return _done(body, "file_search", _json({"queries": body["queries"]}), "\n".join(found))
        case "mcp_call":
            name = function_name(body["name"], body["server_label"] or None)
            result = f"error: {_text(body['error'])}" if "error" in body else body.get("output", "")
            return _done(body, name, body["arguments"], result)
        case "local_shell_call" | "shell_call" | "apply_patch_call":
            arguments = _json(body.get("operation") or body.get("action") or {})
            return Exchange(body["call_id"], body["type"].removesuffix("_call"), arguments, None)
        case "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output":
            result = _text(body.get("output")) or body.get("status") or NO_RESULT
            return Exchange(body.get("call_id") or body["id"], None, "", result)
    return None


def _done(body: Mapping[str, Any], name: str, arguments: str, result: str) -> Exchange:
    return Exchange(body["id"], name, arguments, result or NO_RESULT)


def _text(value: object) -> str:
    return value if isinstance(value, str) else _json(value) if value else ""


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
