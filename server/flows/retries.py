"""The rules that images, chats and responses share for retries: which earlier call a request is for, and which errors
are kept.

Without an Idempotency-Key, a request is for an equal call of its API key that has lost its client: one that runs, or
that has ended and whose answer has not arrived whole. No header is needed for that. A request that says that it is a
retry, as OpenAI's SDKs do, may also be for an equal call whose answer has arrived, or whose client is still there, as
far as the server knows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from server.accounts.claims import Equal
from server.accounts.fingerprints import as_sent, may_be_same
from server.accounts.gateways import GatewayStore
from server.errors import KeyReused, RunsElsewhere
from server.state.active_job import ActiveJob, ActiveJobs
from server.state.expected_retries import CallIdentity, ExpectedRetries

# An image on another server may be reachable next time, and a checkpoint be faster
TRANSIENT_CODES = frozenset({"invalid_image_url", "exceeds_time_limit"})


@dataclass(frozen=True, slots=True)
class RetryInfo:
    """What a request says of earlier attempts.

    OpenAI's SDKs send `retry_count` with every request: 0 with the first; None is another client. `forwarded`: another
    gateway has sent it here, so it is answered here.
    """

    fingerprint: str
    idempotency_key: str | None
    retry_count: int | None
    forwarded: bool = False

    @property
    def says_retry(self) -> bool:
        """Return whether the request says that it repeats another."""
        return bool(self.retry_count)

    @property
    def equal_elsewhere(self) -> Equal | None:
        """Return which equal calls of other gateways the request may be for."""
        if self.forwarded or self.idempotency_key is not None:
            return None
        return "any" if self.says_retry else "left"

    def identity(self, key_id: str, endpoint: str) -> CallIdentity:
        """Return what is equal for calls of one key with equal bodies."""
        return key_id, endpoint, as_sent(self.fingerprint)


class EndedCall(Protocol):
    """An ended call or response that a request may be for; see `CallRecord` for the two flags."""

    @property
    def id(self) -> str:
        """Return its id, which it had as a job, too."""
        ...

    @property
    def idempotency_key(self) -> str | None:
        """Return the key by which its client asks for it, if there is one."""
        ...

    @property
    def owner(self) -> str:
        """Return the server that ran it."""
        ...

    @property
    def replayable(self) -> bool:
        """Return whether the answer may be given to a retry."""
        ...

    @property
    def delivered(self) -> bool:
        """Return whether the answer has arrived whole at a client."""
        ...


JobT = TypeVar("JobT", bound=ActiveJob[Any])
EndedT = TypeVar("EndedT", bound=EndedCall)


def choose_earlier(
    active: Sequence[JobT], ended: Sequence[EndedT], *, says_retry: bool, another_expected: bool
) -> JobT | EndedT | None:
    """Choose the equal call that a request without an Idempotency-Key is for; None if it is a new one.

    `active` are those in memory, oldest first, `ended` those in the database that are not, newest first.
    `another_expected`: a client was told to retry an equal call that never ran, and this may be that retry.
    """
    if lost := [job for job in active if job.has_lost_client]:
        return lost[-1]
    if undelivered := [each for each in ended if each.replayable and not each.delivered]:
        return undelivered[0]
    if not says_retry or another_expected:
        return None
    if active:
        return active[-1]
    return ended[0] if ended and ended[0].replayable else None


class EqualCalls:
    """Finds the earlier call of a request without an Idempotency-Key. One for the whole server."""

    def __init__(self, expected: ExpectedRetries, gateways: GatewayStore) -> None:
        self._expected = expected
        self._gateways = gateways

    async def find(
        self,
        active: ActiveJobs[JobT],
        read: Callable[[], Sequence[EndedT]],
        identity: CallIdentity,
        retry: RetryInfo,
    ) -> JobT | EndedT | None:
        """Return the job to join, or the record to replay. `read` finds the equal calls that ended lately. Raises
        RunsElsewhere for an answer that another gateway may be sending at the moment."""
        if lost := choose_earlier(active.find_equal(identity), (), says_retry=False, another_expected=False):
            return lost
        expected = self._expected.contains(identity)
        found = await self._gateways.in_reader(read)
        jobs = active.find_equal(identity)
        ids = {job.call.id for job in jobs}
        ended = [each for each in found if each.idempotency_key is None and each.id not in ids]
        chosen = choose_earlier(jobs, ended, says_retry=retry.says_retry, another_expected=expected)
        if chosen is None or isinstance(chosen, ActiveJob) or chosen.delivered or retry.forwarded:
            return chosen
        is_own = chosen.owner == self._gateways.owner
        if not is_own and await self._gateways.in_reader(self._gateways.find, chosen.owner) is not None:
            message = "An equal call has just ended on another server. Try again in a moment."
            raise RunsElsewhere(message, owner=chosen.owner, key_id=identity[0])
        return chosen


def check_fingerprint(recorded: str | None, retry: RetryInfo) -> None:
    """Check that an Idempotency-Key came with the same parameters as before. Raises KeyReused if not."""
    if not may_be_same(recorded, retry.fingerprint):
        raise KeyReused(
            "This Idempotency-Key was used with other parameters before. Send a new key with a new request, and the "
            "same body with a retry."
        )


def is_replayable(status: int, code: str | None) -> bool:
    """Return whether a retry gets this error again: it does if the error depends on the request alone."""
    return status in {400, 404, 413, 422} and code not in TRANSIENT_CODES
