"""Parts of a request that the model behind it can't use, left out. Pure; each returns the paths, to be named."""

from collections.abc import Mapping
from typing import Any

from server.schemas.hosted_items import UnreadItem
from server.schemas.response_items import InputImage, InputText, MessageItem
from server.schemas.response_tools import CustomTool, Grammar, ImageTool, NamespaceTool
from server.schemas.responses import ResponseBody

MARK = "[image]"  # in an image's place: the model may say that it saw none


def leave_out_pictures(body: ResponseBody) -> tuple[ResponseBody, list[str]]:
    """Leave out the images for a model that does not see, unless the image tool is there, which still could use
    them."""
    if isinstance(body.input, str) or any(isinstance(tool, ImageTool) for tool in body.tools):
        return body, []
    items, paths = list(body.input), []
    for index, item in enumerate(items):
        if isinstance(item, MessageItem) and not isinstance(item.content, str):
            shown = [number for number, part in enumerate(item.content) if isinstance(part, InputImage)]
            parts = [InputText(type="input_text", text=MARK) if n in shown else p for n, p in enumerate(item.content)]
            items[index] = item.model_copy(update={"content": parts})
            paths += [f"input[{index}].content[{number}]" for number in shown]
    return (body.model_copy(update={"input": items}), paths) if paths else (body, [])


def unknown_options(values: Mapping[str, Any]) -> list[str]:
    """Return the fields of a valid body's image tool that this server's tool does not have, such as `loras`."""
    return [
        f"tools[{index}].{name}"
        for index, tool in enumerate(values.get("tools") or ())
        if tool["type"] == "image_generation"
        for name in sorted(tool.keys() - ImageTool.model_fields.keys())
    ]


def unread_items(body: ResponseBody) -> list[str]:
    """Return the items of other servers' tools that are not part of the prompt."""
    items = () if isinstance(body.input, str) else body.input
    return [f"input[{index}]" for index, item in enumerate(items) if isinstance(item, UnreadItem)]


def unenforced_grammars(body: ResponseBody) -> list[str]:
    """Return the paths of grammars that the server can't enforce: a model on another server reads them as text."""
    paths = []
    for index, tool in enumerate(body.tools):
        inner = enumerate(tool.tools) if isinstance(tool, NamespaceTool) else ()
        tools = [(f"tools[{index}]", tool), *((f"tools[{index}].tools[{number}]", one) for number, one in inner)]
        paths += [
            f"{path}.format" for path, one in tools if isinstance(one, CustomTool) and isinstance(one.format, Grammar)
        ]
    return paths
