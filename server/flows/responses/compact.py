"""A long conversation made short: the user's messages stay, and a summary stands for all the rest."""

import time
import uuid
from collections.abc import Sequence

from pipelines.protocol.chat import ChatFinished, ChatUsage, TextDelta
from server.accounts.keys import Key
from server.accounts.response_items import StoredItem
from server.backends.storage import Storage
from server.catalog.chat import ChatModel
from server.errors import BadRequest
from server.flows.admission import find_chat_model
from server.flows.chat.chats import Chats
from server.flows.chat.source import ChatCall
from server.flows.responses.context import build_context
from server.flows.responses.history import History
from server.flows.responses.items import new_id, render, render_page, without_images, write_summary
from server.schemas.response_answers import Compaction, InputItem
from server.schemas.response_object import CompactedResponse, usage_object
from server.schemas.responses import CompactBody
from server.state.served import ServedCatalog

ENDPOINT = "responses.compact"
SUMMARY_TOKENS = 512
TASK = (
    "Below is a conversation between a user and an assistant. Write a summary from which the assistant can go on: what "
    "the user wants, what was decided, found and made, and what is left to do. Write the summary alone."
)


class Compactor:
    """Makes conversations short. One for the whole server."""

    def __init__(self, catalog: ServedCatalog, history: History, chats: Chats, storage: Storage) -> None:
        self._catalog = catalog
        self._history = history
        self._chats = chats
        self._storage = storage

    async def compact(self, key: Key, body: CompactBody) -> tuple[CompactedResponse, list[str]]:
        """Return the compacted items, and the paths of those that are not found any more: the user's messages, the
        newest image, and the summary. Raises ApiError."""
        model = find_chat_model(self._catalog.current, body.model, key.groups)
        chain = await self._history.read_chain(key, body.previous_response_id)
        inputs, missing = await self._history.read_inputs(key, body.input)
        items = [*chain, *inputs]
        if not items:
            message = "There is nothing to compact: send 'input' or 'previous_response_id'."
            raise BadRequest(message, param="input", code="missing_required_parameter")
        text, usage = await self._summarise(key, model, transcript(items, body.instructions))
        kept = [item for item in items if item.body["type"] == "message" and item.body["role"] == "user"]
        images = [item for item in items if item.body["type"] == "image_generation_call"][-1:]
        output = [*await self._messages(kept), *await render_page(images, self._storage)]
        compacted: CompactedResponse = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [*output, compaction_item(text)],
            "usage": usage_object(usage),
        }
        return compacted, missing

    async def _messages(self, kept: Sequence[StoredItem]) -> list[InputItem]:
        """Return the messages as clients get them. If more images than fit into an answer are there, the newest ones
        stay."""
        newest = await render_page(kept[::-1], self._storage)
        older = map(without_images, kept[: len(kept) - len(newest)])
        return [*[render(item, self._storage) for item in older], *newest[::-1]]

    async def _summarise(self, key: Key, model: ChatModel, conversation: str) -> tuple[str, ChatUsage]:
        """Summarise a conversation. If it is too long for the model, its newer half is read, or half of that, and so
        on."""
        while True:
            messages = [{"role": "system", "content": TASK}, {"role": "user", "content": conversation}]
            values = {"messages": messages, "max_tokens": SUMMARY_TOKENS, "temperature": 0}
            texts, usage = [], ChatUsage(0, 0)
            try:
                chat = await self._chats.prepare(ChatCall(key, model, ENDPOINT, values))
                async for event in chat.events():
                    if isinstance(event, TextDelta):
                        texts.append(event.text)
                    if isinstance(event, ChatFinished):
                        usage = event.usage
            except BadRequest as error:
                if error.code != "context_length_exceeded" or len(conversation) < 2:
                    raise
                conversation = conversation[len(conversation) // 2 :]
                continue
            return "".join(texts), usage


def transcript(items: Sequence[StoredItem], instructions: str | None) -> str:
    """Write the conversation as one text, in which tool calls are their JSON."""
    lines = []
    for message in build_context(items, instructions, tools=True, vision=False).messages:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        called = [f"calls {call['name']} with {call['arguments']}" for call in calls]
        lines += [f"{message['role']}: {text}" for text in (message["content"], *called) if text]
    return "\n".join(lines)


def compaction_item(summary: str) -> Compaction:
    """Return the item that clients send back in place of the items that its summary covers."""
    return {"id": new_id("compaction"), "type": "compaction", "encrypted_content": write_summary(summary)}
