"""Chats of a local checkpoint: check the request, load its images, moderate it, run the job."""

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from pipelines.protocol.chat import Admitted, ChatEvent, ChatSpec, CountJob
from pipelines.protocol.tiers import ServiceTier
from server.accounts.keys import Key
from server.catalog.chat import ChatModel
from server.errors import BadRequest
from server.flows.chat.completion import CompletionHead, CompletionWriter, new_completion_id
from server.flows.chat.events import AnswerEvent
from server.flows.chat.moderation import chat_moderation_context, chat_texts
from server.flows.chat.parse import ineffective_fields, parse_chat
from server.flows.chat.request import ChatRequest, build_job, check_capabilities
from server.flows.chat.run import UsageContext
from server.flows.chat.shown_images import loaded_request, shown_request
from server.flows.chat.source import Chat, ChatCall, ChatParts, ChatSource

SOFTWARE = version("darkroom")  # at import: it reads files


class LocalSource(ChatSource):
    """Answers the chats of a checkpoint on the chat worker."""

    def __init__(self, parts: ChatParts, model: ChatModel, spec: ChatSpec) -> None:
        self._parts = parts
        self._model = model
        self._spec = spec

    async def prepare(self, call: ChatCall) -> Chat:
        """Check a call, and return the chat that answers it. Raises ApiError."""
        request, unseen = await self._read(call)
        ineffective = ineffective_fields(call.values) if call.verbatim else []
        writer = CompletionWriter(
            self._new_head(call.key.tier(request.service_tier)),
            request.n,
            logprobs=request.logprobs,
            include_usage=request.include_usage,
            custom_tools=request.custom_tools,
        )
        events = partial(self._events, call.key, request, writer.head.id)
        return Chat(events, writer, (*ineffective, *unseen))

    def run(self, request: ChatRequest, usage: UsageContext) -> AsyncGenerator[ChatEvent, None]:
        """Run a checked request under a new id, and yield its events."""
        return self._run(f"chat_{uuid.uuid4().hex}", request, usage)

    async def count_tokens(self, call: ChatCall) -> int:
        """Count the tokens of a call's prompt, images and tools included, without an answer. Raises ApiError."""
        request, _ = await self._read(call)
        request, _ = await self._load_images(call.key, request)
        prompt = (request.messages, request.decoded_images, request.tools)
        job = CountJob(f"count_{uuid.uuid4().hex}", self._spec, *prompt, owner=call.key.id)
        return (await self._parts.runner.count_tokens(job)).tokens

    async def _read(self, call: ChatCall) -> tuple[ChatRequest, list[str]]:
        """Return the request by what the model reads and sees, and the paths of what it is not shown. Raises
        BadRequest."""
        request = await asyncio.to_thread(parse_chat, call.values)
        if call.stops is not None:
            request = replace(request, stop=call.stops)
        shown, paths = shown_request(request, sees=self._spec.vision, leave_out=self._parts.leave_out_pictures)
        return shown, [*request.left_out, *paths]

    def _new_head(self, tier: ServiceTier) -> CompletionHead:
        """Return the head of a new answer. Its fingerprint changes with the checkpoint's folder and this software."""
        backend = f"{self._spec.path}:{self._spec.dtype}:{SOFTWARE}"
        fingerprint = f"fp_{hashlib.sha256(backend.encode()).hexdigest()[:10]}"
        return CompletionHead(new_completion_id(), int(time.time()), self._model.name, fingerprint, tier)

    async def _events(self, key: Key, request: ChatRequest, job_id: str) -> AsyncGenerator[AnswerEvent, None]:
        request, lost = await self._load_images(key, request)
        moderator, context = self._parts.moderator, chat_moderation_context(job_id, key, self._model)
        read = (*request.tools, request.template_options)  # all that the template writes
        texts = await asyncio.to_thread(chat_texts, request.messages, read)
        await moderator.check_texts(context, "input", texts)
        await moderator.check_images(context, "input", request.decoded_images)
        events = self._run(job_id, request, UsageContext(key, self._model.name))
        async with aclosing(moderator.moderate_stream(context, events)) as moderated:
            try:
                async for event in moderated:
                    yield replace(event, ignored=(*lost, *event.ignored)) if isinstance(event, Admitted) else event
            except BadRequest as error:
                error.param = request.request_path(error.param)
                raise

    def _run(self, job_id: str, request: ChatRequest, usage: UsageContext) -> AsyncGenerator[ChatEvent, None]:
        scope = "" if self._parts.cache_across_keys else usage.key.id
        tier = usage.key.tier(request.service_tier)
        job = build_job(request, self._spec, job_id, self._parts.time_limit_s, scope, tier)
        return self._parts.runner.run(replace(job, owner=usage.key.id), usage)

    async def _load_images(self, key: Key, request: ChatRequest) -> tuple[ChatRequest, list[str]]:
        """Return the request with the pixels of its images, and the paths of those that can't be loaded any more.
        Raises ApiError, also for images that the model can't take."""
        check_capabilities(request, self._spec, self._parts.catalog.current)
        return loaded_request(request, await self._parts.references.load_shown(key.id, request.images))
