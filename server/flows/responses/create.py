"""Which response a request is for: an earlier one that it retries, or a new one that is planned and started here."""

import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial

from server.accounts.calls import CallId
from server.accounts.fingerprints import as_sent
from server.accounts.keys import Key
from server.accounts.responses import ResponseStore, StoredResponse
from server.errors import Overloaded, RateLimited
from server.flows.admission import find_chat_model, find_image_model
from server.flows.chat.request import MAX_IMAGES
from server.flows.rate_limits import RateLimiter
from server.flows.responses.history import History
from server.flows.responses.image_tool import fit_tool
from server.flows.responses.item_images import RequestItems
from server.flows.responses.left_out import leave_out_images, leave_out_oldest, unenforced_grammars, unread_items
from server.flows.responses.planner import Planner, check_combinations
from server.flows.responses.retrieve import Responses
from server.flows.responses.tool_loop import ToolLoop
from server.flows.retries import RetryInfo
from server.parts import Running
from server.schemas.response_object import echo
from server.schemas.response_tools import ImageTool
from server.schemas.responses import ResponseBody
from server.state.active_responses import ENDPOINT, ActiveResponse
from server.state.served import ServedCatalog


@dataclass(frozen=True, slots=True)
class ResponseParts:
    """The parts that a response is planned, run and kept with."""

    catalog: ServedCatalog
    history: History
    planner: Planner
    loop: ToolLoop
    responses: Responses
    store: ResponseStore


class ResponseCreator:
    """Starts responses. One for the whole server."""

    def __init__(
        self,
        parts: ResponseParts,
        running: Running,
        limiter: RateLimiter,
        *,
        retry_grace_s: float,
        leave_out_pictures: bool,
    ) -> None:
        self._parts = parts
        self._running = running
        self._limiter = limiter
        self._retry_grace_s = retry_grace_s
        self._leave_out_images = leave_out_pictures

    def leave_out_unknown(self, key: Key, body: ResponseBody) -> tuple[ResponseBody, list[str]]:
        """Leave out the fields that the body's models do not know and its caller can do without; return the body, and
        the paths of those fields. They are options of the image tool whose model the caller did not choose, items that
        are not part of the prompt, images before the user's last message for a model that does not see (of that message
        too with `truncation: "auto"`, or if a setting allows it), the oldest of too many images. Raises ApiError."""
        catalog = self._parts.catalog.current
        chat = find_chat_model(catalog, body.model, key.groups)
        tools, left_out = list(body.tools), unread_items(body)
        for index, tool in enumerate(tools):
            if isinstance(tool, ImageTool) and tool.model is None:
                fitted, names = fit_tool(tool, find_image_model(catalog, chat.image_model, key.groups))
                tools[index] = fitted
                left_out += [f"tools[{index}].{name}" for name in names]
        body = body.model_copy(update={"tools": tools})
        if chat.spec is None:
            left_out += [*unenforced_grammars(body), *(["truncation"] if body.truncation == "auto" else [])]
        if chat.vision is False:
            allowed = self._leave_out_images or body.truncation == "auto"
            body, paths = leave_out_images(body, last_too=allowed)
        else:
            body, paths = leave_out_oldest(body, MAX_IMAGES)
        return body, [*left_out, *paths]

    async def find_or_start(self, key: Key, body: ResponseBody, results_base: str, retry: RetryInfo) -> ActiveResponse:
        """Return the response to follow: an earlier one that is retried, or a new one. Raises ApiError, and then
        nothing runs and nothing is recorded."""
        retry_key = retry.idempotency_key or as_sent(retry.fingerprint)
        async with self._running.responses.look_up_lock(key.id, retry_key):
            earlier = await self._parts.responses.find_retried(key, retry)
            return earlier or await self._start(key, body, results_base, retry)

    async def _start(self, key: Key, body: ResponseBody, results_base: str, retry: RetryInfo) -> ActiveResponse:
        identity = retry.identity(key.id, ENDPOINT)
        if retry.says_retry:
            self._running.expected_retries.consume(identity)
        try:
            self._running.drain.check_open()
            self._limiter.check(key)
            with self._limiter.counted(key):  # until the response itself counts
                return await self._claim_and_run(key, body, results_base, retry)
        except (RateLimited, Overloaded):
            if retry.idempotency_key is None:
                self._running.expected_retries.add(identity)
            raise

    async def _claim_and_run(self, key: Key, body: ResponseBody, results_base: str, retry: RetryInfo) -> ActiveResponse:
        """Claim a place within the key's limits, and start the response. The claim lasts as long as the response."""
        response_id = f"resp_{uuid.uuid4().hex}"
        call = CallId(response_id, key.id, ENDPOINT, retry.fingerprint, retry.idempotency_key)
        async with AsyncExitStack() as claim:
            await claim.enter_async_context(self._limiter.claimed(key, call, find_equal=retry.equal_elsewhere))
            response = await self._plan_and_run(key, body, response_id, results_base, retry)
            response.when_done(partial(self._end, claim.pop_all()))
            return response

    def _end(self, claim: AsyncExitStack) -> None:
        self._running.background.spawn(claim.aclose())

    def _keep_lost(self, response: ActiveResponse) -> None:
        """Record the events of an answer that has not arrived: a retry may ask for its stream."""
        if response.done and response.recorded and not response.answered:
            record = self._parts.store.retry_in_writer(self._parts.loop.record_events, response)
            self._running.background.spawn(record)

    async def _plan_and_run(
        self, key: Key, body: ResponseBody, response_id: str, results_base: str, retry: RetryInfo
    ) -> ActiveResponse:
        model = find_chat_model(self._parts.catalog.current, body.model, key.groups)
        check_combinations(body, model)
        past = await self._parts.history.read_past(key, body)
        inputs, missing = await self._parts.history.read_inputs(key, body.input)
        plan = await self._parts.planner.plan(key, model, body, response_id, RequestItems(past, inputs), results_base)
        record = StoredResponse(
            id=response_id,
            key_id=key.id,
            previous_id=body.previous_response_id,
            state="queued" if body.background else "in_progress",
            background=body.background,
            echo=echo(body, model.name, dict(model.spec.defaults) if model.spec else {}, key.tier(body.service_tier)),
            created_at=int(time.time()),
            idempotency_key=retry.idempotency_key,
            fingerprint=retry.fingerprint,
            stored=body.store,
            conversation_id=body.conversation.id if body.conversation else None,
        )
        if body.store:
            plan = replace(plan, inputs=await self._parts.history.store_inputs(key, plan.inputs, decoded=True))
        if body.background:
            await self._parts.store.in_writer(self._parts.store.begin, record, plan.inputs)
        recorded = body.store or retry.idempotency_key is not None or plan.image is not None  # none is charged twice
        grace_s = 0.0 if retry.retry_count is None else self._retry_grace_s
        response = ActiveResponse(record, recorded=recorded, grace_s=grace_s)
        response.unread = (*missing, *plan.left_out)
        if retry.idempotency_key is None:
            mark = self._parts.store.mark_delivered
            response.record_arrival = partial(self._parts.store.retry_in_writer, mark, response_id)
            response.when_left(partial(self._keep_lost, response))
            self._limiter.tell_when_left(response)
        return self._running.responses.start(response, self._parts.loop.run(plan, response))
