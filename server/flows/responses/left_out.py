"""Parts of a request that the model behind it can't use, left out. Pure; each returns the paths, to be named."""

from collections.abc import Iterator, Sequence

from server.conversation.blocks import is_answer, unanswered
from server.conversation.turns import MARK
from server.schemas.response_items import FunctionOutputItem, InputImage, InputText, MessageItem, UnreadItem
from server.schemas.response_tools import CustomTool, Grammar, ImageTool, NamespaceTool
from server.schemas.responses import ResponseBody

CONTENTS: dict[type, str] = {MessageItem: "content", FunctionOutputItem: "output"}  # where items have images


def leave_out_images(body: ResponseBody, *, last_too: bool) -> tuple[ResponseBody, list[str]]:
    """Leave out the images for a model that does not see, unless the image tool is there, which still could use them.
    Those of the user's message that waits for an answer are left out only if `last_too`: they are refused otherwise."""
    if isinstance(body.input, str) or any(isinstance(tool, ImageTool) for tool in body.tools):
        return body, []
    sent = [item.model_dump(include={"type", "role"}) for item in body.input]
    last = unanswered([item.get("role") == "user" for item in sent], [*map(is_answer, sent)])
    return _replace_images(body, [place for place in _image_places(body) if last_too or place[0] not in last])


def leave_out_oldest(body: ResponseBody, most: int) -> tuple[ResponseBody, list[str]]:
    """Return the body without the oldest images if there are more than `most`, and their paths. Those of the user's
    last message stay."""
    shown = list(_image_places(body))
    older = [place for place in shown if place[0] != last_message(body)]
    return _replace_images(body, older[: max(0, len(shown) - most)])


def last_message(body: ResponseBody) -> int | None:
    """Return the index of the user's last message among the items."""
    items = () if isinstance(body.input, str) else body.input
    spoken = [index for index, item in enumerate(items) if isinstance(item, MessageItem) and item.role == "user"]
    return spoken[-1] if spoken else None


def _image_places(body: ResponseBody) -> Iterator[tuple[int, int]]:
    """Yield the indexes of the items and of their parts that are images."""
    for index, item in enumerate(() if isinstance(body.input, str) else body.input):
        name = CONTENTS.get(type(item))
        for number, part in enumerate(getattr(item, name) if name else ()):
            if isinstance(part, InputImage):
                yield index, number


def _replace_images(body: ResponseBody, places: Sequence[tuple[int, int]]) -> tuple[ResponseBody, list[str]]:
    """Return the body with a text in these places, and their paths."""
    if not places or isinstance(body.input, str):
        return body, []
    items, paths = list(body.input), []
    for index, number in places:
        item, name = items[index], CONTENTS[type(items[index])]
        parts = list(getattr(item, name))
        parts[number] = InputText(type="input_text", text=MARK)
        items[index] = item.model_copy(update={name: parts})
        paths.append(f"input[{index}].{name}[{number}]")
    return body.model_copy(update={"input": items}), paths


def unread_items(body: ResponseBody) -> list[str]:
    """Return the paths of the items that are not part of the prompt: those of other servers' tools."""
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
