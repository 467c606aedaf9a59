"""Writes the row of a request that runs a model, once it and all that it started have ended."""

from collections.abc import Mapping
from typing import Any

import structlog

from server.accounts.call_log import CallLog, LoggedCall
from server.errors import DatabaseBusy, DatabaseFailed
from server.state.call_limits import CallRate
from server.state.tasks import BackgroundTasks
from server.telemetry.call_trace import CallTrace

log = structlog.stdlib.get_logger("darkroom.calls")

MAX_PROMPT = 32_000  # characters
MAX_TEXT = 200  # of a parameter


class CallRecorder:
    """Records calls. Of one key, refusals beyond `refusals_per_minute` are counted in metrics alone, so that a flood
    can't fill the disk. `keep_prompts` keeps prompts and parameters in the rows."""

    def __init__(
        self, call_log: CallLog, background: BackgroundTasks, *, refusals_per_minute: int, keep_prompts: bool
    ) -> None:
        self._log = call_log
        self._background = background
        self._refusals_per_minute = refusals_per_minute
        self._keep_prompts = keep_prompts
        self._refusals = CallRate()

    def record(self, trace: CallTrace, endpoint: str, status: int, seconds: float, replayed: bool) -> None:
        """Write the row of a call in the background: no answer waits for it. `endpoint` is the route."""
        if trace.key_id is None:
            return
        refused = status >= 400 and trace.run_s is None
        if refused and not self._refusals.begin(trace.key_id, self._refusals_per_minute):
            return
        call = LoggedCall(
            id=trace.request_id,
            job=trace.job,
            key_id=trace.key_id,
            endpoint=endpoint[:100],
            model=trace.model[:200] if trace.model else None,
            status=status,
            code=trace.code[:100] if trace.code else None,
            message=trace.message[:1000] if trace.message else None,
            param=trace.param[:200] if trace.param else None,
            seconds=round(seconds, 3),
            queue_s=_round_seconds(trace.queue_s),
            run_s=_round_seconds(trace.run_s),
            price=trace.price,
            images=trace.images,
            prompt_tokens=trace.prompt_tokens,
            completion_tokens=trace.completion_tokens,
            replayed=replayed,
            created_at=trace.created_at,
            prompt=trace.prompt if self._keep_prompts else None,
            parameters=trace.parameters if self._keep_prompts else None,
        )
        self._background.spawn(self._write(call))

    async def _write(self, call: LoggedCall) -> None:
        """Write the row without patience: on a full disk, rows of refused calls would keep paid calls from the
        writer."""
        try:
            await self._log.in_writer(self._log.add, call)
        except (DatabaseBusy, DatabaseFailed) as error:  # its money is in the ledger, whatever becomes of this row
            log.warning("a call is not in the log of calls", call=call.id, job=call.job, reason=str(error))


def describe_body(trace: CallTrace, values: Mapping[str, Any]) -> None:
    """Record in the trace what a body of any protocol asks for: the model, the prompt or the last text of the user, and
    the plain parameters."""
    trace.model = _text(values.get("model")) or trace.model
    content = values.get("messages") or values.get("contents") or values.get("input")
    trace.prompt = (_text(values.get("prompt")) or _last_text(content) or "")[:MAX_PROMPT] or None
    trace.parameters = {
        name: value
        for name, value in values.items()
        if name not in {"prompt", "messages", "contents", "input", "user", "metadata"} and _is_plain(value)
    }


def _last_text(content: object) -> str | None:
    """Return a text itself, or the text of the last message or part that has one."""
    for _ in range(4):  # a list of messages, its content, a list of parts, a part
        if isinstance(content, str):
            return content
        if isinstance(content, list):
            content = next((part for part in reversed(content) if _has_text(part)), None)
        elif isinstance(content, dict):
            content = content.get("text") or content.get("content") or content.get("parts")
    return content if isinstance(content, str) else None


def _has_text(part: object) -> bool:
    if isinstance(part, dict):
        return part.get("role", "user") == "user" and any(part.get(name) for name in ("text", "content", "parts"))
    return isinstance(part, str)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_TEXT)


def _round_seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
