"""One chat completion on a local model: check the request, load its images, moderate it, run the job."""

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.metadata import version

from pipelines.protocol.chat import ChatEvent, ChatSpec, CountJob
from server.accounts.keys import Key
from server.catalog.chat import ChatModel
from server.errors import BadRequest
from server.flows.chat.completion import CompletionHead
from server.flows.chat.moderation import chat_moderation_context, chat_texts
from server.flows.chat.request import ChatRequest, build_job, check_abilities, without_pictures
from server.flows.chat.run import ChatRunner, UsageContext
from server.flows.moderation import Moderator
from server.flows.references import ReferenceLoader
from server.state.served_catalog import ServedCatalog

SOFTWARE = version("darkroom")  # at import: it reads files


def new_completion_id() -> str:
    """An id that is not used yet."""
    return f"chatcmpl-{uuid.uuid4().hex}"


def new_completion_head(model: str, spec: ChatSpec) -> CompletionHead:
    """The head of a new answer. Its fingerprint changes with the checkpoint's folder and with this software."""
    backend = f"{spec.path}:{spec.dtype}:{SOFTWARE}"
    return CompletionHead(
        id=new_completion_id(),
        created=int(time.time()),
        model=model,
        fingerprint=f"fp_{hashlib.sha256(backend.encode()).hexdigest()[:10]}",
    )


class ChatCompletions:
    """Runs chat completions on the local chat worker."""

    def __init__(
        self,
        catalog: ServedCatalog,
        moderator: Moderator,
        references: ReferenceLoader,
        runner: ChatRunner,
        *,
        time_limit_s: float,
        leave_out_pictures: bool,
    ) -> None:
        self._catalog = catalog
        self._moderator = moderator
        self._references = references
        self._runner = runner
        self._time_limit_s = time_limit_s
        self._leave_out_pictures = leave_out_pictures

    def leave_out_unseen(self, request: ChatRequest, spec: ChatSpec) -> tuple[ChatRequest, list[str]]:
        """The request without pictures that the model does not see, if the operator allows that; and their paths."""
        if spec.vision or not self._leave_out_pictures:
            return request, []
        return without_pictures(request), [image.field for image in request.images]

    async def stream(
        self, request: ChatRequest, model: ChatModel, spec: ChatSpec, head: CompletionHead, key: Key
    ) -> AsyncGenerator[ChatEvent, None]:
        """The events of the answer, from its `Admitted` on. Raises ApiError, also between events."""
        check_abilities(request, spec, self._catalog.current)
        decoded = await self._references.load(key.id, request.images)
        images = tuple(one.picture for one in decoded)
        context = chat_moderation_context(head.id, key, model)
        read = (*request.tools, request.template_options)  # all that the template writes
        texts = await asyncio.to_thread(chat_texts, request.messages, read)
        await self._moderator.check_texts(context, "input", texts)
        await self._moderator.check_pictures(context, "input", images)
        job = build_job(request, spec, head.id, images, self._time_limit_s)
        events = self._moderator.moderate_stream(context, self._runner.run(job, UsageContext(key, model.name)))
        async with aclosing(events):
            try:
                async for event in events:
                    yield event
            except BadRequest as error:
                error.param = request.request_path(error.param)
                raise

    async def count_tokens(self, request: ChatRequest, spec: ChatSpec, key: Key) -> int:
        """The length of the request's prompt. Raises ApiError."""
        check_abilities(request, spec, self._catalog.current)
        decoded = await self._references.load(key.id, request.images)
        images = tuple(one.picture for one in decoded)
        job = CountJob(f"count_{uuid.uuid4().hex}", spec, request.messages, images, request.tools)
        return (await self._runner.count_tokens(job)).tokens
