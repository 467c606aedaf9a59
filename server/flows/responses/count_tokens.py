"""How long a response's input would be for its model."""

import uuid

from pipelines.protocol.chat import CountJob
from server.accounts.keys import Key
from server.flows.chat.run import count_tokens
from server.flows.rate_limits import place
from server.flows.references import load_references
from server.flows.responses.context import build_context
from server.flows.responses.create import chat_tools, find_local_model
from server.flows.responses.history import read_chain, read_inputs, to_references
from server.schemas.responses import ResponseBody
from server.services import Services


async def count_input(services: Services, key: Key, body: ResponseBody) -> int:
    """Tokens of the whole chain, the instructions and the tools among them. Raises ApiError."""
    _, spec = find_local_model(services, key, body)
    chain = await read_chain(services, key, body.previous_response_id)
    inputs = await read_inputs(services, key, body.input)
    context = build_context([*chain, *inputs], body.instructions, tools=spec.tools, vision=spec.vision)
    pictures = await load_references(services, await to_references(services, context.pictures))
    job = CountJob(
        id=f"count_{uuid.uuid4().hex}",
        checkpoint=spec,
        messages=context.messages,
        images=tuple(decoded.picture for decoded in pictures),
        tools=chat_tools(body),
    )
    with place(services, key):
        return (await count_tokens(services, job)).tokens
