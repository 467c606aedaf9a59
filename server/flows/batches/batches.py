"""Batches as their keys see them: created, listed, shown, cancelled, and their answers."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

from server.accounts.batches import Batch, BatchLine, BatchStore, Repeatable
from server.accounts.keys import Key
from server.accounts.paging import Page, UnknownEntry
from server.errors import BadRequest, DatabaseBusy, NotFound
from server.flows.batches.lines import read_input_file, read_lines
from server.flows.batches.run import BatchRunner
from server.flows.retries import RetryInfo, check_fingerprint
from server.schemas.batches import BatchBody, BatchCounts, BatchList, BatchObject
from server.settings import Settings
from server.state.active_calls import RETRY_WINDOW_S
from server.state.expected_retries import ExpectedRetries
from server.state.served import ServedCatalog

ENDPOINT = "batches"
LONGEST_S = 86_400.0
LINES_AT_ONCE = 50
NOT_RUN = {
    "expired": ("batch_expired", "The batch expired before this line was run; nothing was charged."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before this line was run; nothing was charged."),
}


class Batches:
    """Creates, shows and cancels batches. None lasts longer than calls are found by their Idempotency-Key: a line that
    is sent again after that would be charged twice."""

    def __init__(
        self,
        store: BatchStore,
        runner: BatchRunner,
        catalog: ServedCatalog,
        expected: ExpectedRetries,
        settings: Settings,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._runner = runner
        self._expected = expected
        self._settings = settings

    async def create(self, key: Key, body: BatchBody, base: str, retry: RetryInfo) -> tuple[BatchObject, bool]:
        """Begin a batch, or find the one that the request repeats; return it, and whether it is an earlier one. `base`
        is the server's address. Raises BadRequest for its first invalid line, and KeyReused."""
        if bool(body.input) == (body.input_file_id is not None):
            message = "Send the lines either in 'input', as JSONL or an array, or as a file's path in 'input_file_id'."
            raise BadRequest(message, param="input", code="missing_required_parameter")
        identity = retry.identity(key.id, ENDPOINT)
        earlier = Repeatable(
            RETRY_WINDOW_S if retry.idempotency_key is None else self._settings.idempotency_s,
            says_retry=retry.says_retry and not self._expected.contains(identity),
        )
        if retry.says_retry:
            self._expected.consume(identity)
        batch = self._new(key, body, base, retry)
        try:
            found = await self._store.in_writer(self._store.find_earlier, batch, earlier)
            if found is None:  # else its file may have changed since
                lines = await asyncio.to_thread(self._read, body)
                batch = replace(batch, total=len(lines))
                found = await self._store.in_writer(self._store.create, batch, lines, earlier)
        except DatabaseBusy as error:
            if error.undone and retry.idempotency_key is None:
                self._expected.add(identity)
            raise
        check_fingerprint(found.fingerprint, retry)
        self._runner.poll()
        return to_batch_object(found), found.id != batch.id

    def _new(self, key: Key, body: BatchBody, base: str, retry: RetryInfo) -> Batch:
        """Return a batch whose lines are not counted yet."""
        now = self._store.now()
        return Batch(
            id=f"batch_{uuid.uuid4().hex}",
            key_id=key.id,
            endpoint=body.endpoint,
            source=body.input_file_id,
            base=base,
            labels=body.metadata,
            total=0,
            created_at=now,
            expires_at=now + min(LONGEST_S, self._settings.idempotency_s),
            fingerprint=retry.fingerprint,
            idempotency_key=retry.idempotency_key,
        )

    async def mark_lost(self, batch_id: str) -> None:
        """Record that the answer to the request for a batch has not arrived: an equal request is for the same batch."""
        await self._store.retry_in_writer(self._store.mark_lost, batch_id)

    async def show(self, key: Key, batch_id: str) -> BatchObject:
        """Return this key's batch. Raises NotFound."""
        return to_batch_object(await self._find(key, batch_id))

    async def page(self, key: Key, page: Page) -> BatchList:
        """Return a page of this key's batches. Raises BadRequest for an unknown `after`."""
        try:
            found = await self._store.in_reader(self._store.page, key.id, page)
        except UnknownEntry as error:
            raise BadRequest(f"There is no batch '{page.after}' of this key.", param="after") from error
        return BatchList.of([to_batch_object(batch) for batch in found], page.limit)

    async def cancel(self, key: Key, batch_id: str) -> BatchObject:
        """Cancel a batch, and return it: the calls that run end as they do, no other begins. Raises NotFound."""
        await self._find(key, batch_id)
        await self._store.in_writer(self._store.cancel, batch_id, key.id)
        self._runner.poll()
        return to_batch_object(await self._find(key, batch_id))

    async def output(self, key: Key, batch_id: str) -> AsyncIterator[str]:
        """Return the answers as JSONL, in the order of the lines: those so far while the batch runs. Raises
        NotFound."""
        return self._output(await self._find(key, batch_id))

    async def _output(self, batch: Batch) -> AsyncIterator[str]:
        after, ended = -1, batch.ended_at is not None
        read = partial(self._store.answered, batch.id, limit=LINES_AT_ONCE, all_lines=ended)
        while lines := await self._store.in_reader(read, after):
            yield "".join(_answer(batch, line) + "\n" for line in lines)
            after = lines[-1].position

    def _read(self, body: BatchBody) -> list[BatchLine]:
        if body.input_file_id is None:
            return read_lines(body.input, body.endpoint, "input", self._has_flex)
        settings = self._settings
        content = read_input_file(settings.batch_folder, body.input_file_id, settings.max_json_mib * 1024**2)
        return read_lines(content, body.endpoint, "input_file_id", self._has_flex)

    def _has_flex(self, url: str, model: object) -> bool:
        """Return whether a call may wait for others here: chats of other servers are queued there."""
        if "/images/" in url:
            return True
        catalog, name = self._catalog.current, model if isinstance(model, str) else None
        chat = catalog.chat.find(name)
        return chat.spec is not None if chat is not None else catalog.find(name) is not None

    async def _find(self, key: Key, batch_id: str) -> Batch:
        batch = await self._store.in_reader(self._store.find, batch_id, key.id)
        if batch is None:
            message = f"There is no batch '{batch_id[:60]}' of this key; it may be too old."
            raise NotFound(message, param="batch_id", code="batch_not_found")
        return batch


def to_batch_object(batch: Batch) -> BatchObject:
    """Return the batch as OpenAI's SDKs read it."""
    ended = int(batch.ended_at) if batch.ended_at is not None else None
    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        input_file_id=batch.source or "",
        status=batch.state,
        output_url=f"{batch.base}/v1/batches/{batch.id}/output",
        created_at=int(batch.created_at),
        in_progress_at=int(batch.created_at),
        expires_at=int(batch.expires_at),
        completed_at=ended if batch.state == "completed" else None,
        expired_at=ended if batch.state == "expired" else None,
        cancelling_at=int(batch.cancelling_at) if batch.cancelling_at is not None else None,
        cancelled_at=ended if batch.state == "cancelled" else None,
        request_counts=BatchCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        metadata=dict(batch.labels),
    )


def _answer(batch: Batch, line: BatchLine) -> str:
    """Return a line of the output. The answer is put in as it is: it may be megabytes."""
    head = json.dumps({"id": f"{batch.id}-{line.position}", "custom_id": line.custom_id}, ensure_ascii=False)[:-1]
    if line.status is None:
        code, message = NOT_RUN["expired" if batch.state == "expired" else "cancelled"]
        return f'{head}, "response": null, "error": {json.dumps({"code": code, "message": message})}}}'
    fields = json.dumps({"status_code": line.status, "request_id": line.request_id})[:-1]
    return f'{head}, "response": {fields}, "body": {line.answer}}}, "error": null}}'
