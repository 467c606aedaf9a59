"""One chat completion on a local model: what it needs is looked up, its job is run."""

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.metadata import version

from pipelines.protocol.chat import ChatEvent, ChatSpec
from server.flows.chat.completion import Head
from server.flows.chat.moderation import chat_subject, chat_texts
from server.flows.chat.request import ChatCall, check_abilities, to_job
from server.flows.chat.run import Tally, run_chat
from server.flows.moderation import check_pictures, check_texts, guarded
from server.flows.references import load_references
from server.services import Services

SOFTWARE = version("darkroom")  # looked up once: it reads files


def new_head(model: str, spec: ChatSpec) -> Head:
    """The head of a new answer. Its fingerprint changes with the checkpoint's folder and with this software."""
    made_by = f"{spec.path}:{spec.dtype}:{SOFTWARE}"
    return Head(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=model,
        fingerprint=f"fp_{hashlib.sha256(made_by.encode()).hexdigest()[:10]}",
    )


async def start_chat(
    services: Services, call: ChatCall, spec: ChatSpec, head: Head, tally: Tally
) -> AsyncGenerator[ChatEvent, None]:
    """The events of the answer, from its `Admitted` on. Raises ApiError, also on the way."""
    check_abilities(call, spec, services.catalog)
    pictures = await load_references(services, call.images)
    images = tuple(decoded.picture for decoded in pictures)
    subject = chat_subject(services, head.id, tally)
    texts = await asyncio.to_thread(chat_texts, call.messages, call.tools)
    await check_texts(services, subject, "input", texts)
    await check_pictures(services, subject, "input", images)
    job = to_job(call, spec, head.id, images, services.settings.job_time_limit_s)
    async with aclosing(guarded(services, subject, run_chat(services, job, tally))) as events:
        async for event in events:
            yield event
