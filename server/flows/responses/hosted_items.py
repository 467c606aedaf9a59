"""How the model is shown items of tools that other servers ran: calls, and their results as text. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from server.conversation.turns import Call, Result
from server.flows.responses.tools import function_name

NO_RESULT = "There is no result."


def read_exchange(body: Mapping[str, Any]) -> list[Call | Result]:
    """Return the call and the result of an item, as far as it has them; nothing for an item of another kind, or one
    that says nothing by itself."""
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
            return [Call(body["type"].removesuffix("_call"), arguments, body["call_id"])]
        case "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output":
            result = _text(body.get("output")) or body.get("status") or NO_RESULT
            return [Result((result,), body.get("call_id") or body["id"])]
    return []


def _done(body: Mapping[str, Any], name: str, arguments: str, result: str) -> list[Call | Result]:
    return [Call(name, arguments, body["id"]), Result((result or NO_RESULT,), body["id"])]


def _text(value: object) -> str:
    return value if isinstance(value, str) else _json(value) if value else ""


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
