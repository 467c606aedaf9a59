"""The rules that images, chats and responses share for retries: a request's headers about itself, and the errors that
are kept."""

from dataclasses import dataclass

from server.errors import KeyReused

# An image on another server may be reachable next time, and a checkpoint be faster
TRANSIENT_CODES = frozenset({"invalid_image_url", "exceeds_time_limit"})


@dataclass(frozen=True, slots=True)
class RetryInfo:
    """The headers of a request about earlier attempts.

    OpenAI's SDKs send `retry_count` with every request: 0 with the first; None is another client. `forwarded`: another
    gateway has sent it here, so it is answered here.
    """

    fingerprint: str
    idempotency_key: str | None
    retry_count: int | None
    forwarded: bool = False

    @property
    def finds_equal(self) -> bool:
        """Return whether the request may be for an equal call that runs on another gateway."""
        return bool(self.retry_count) and not self.forwarded


def check_fingerprint(recorded: str | None, retry: RetryInfo) -> None:
    """Check that an Idempotency-Key came with the same parameters as before. Raises KeyReused if not."""
    if recorded != retry.fingerprint:
        raise KeyReused(
            "This Idempotency-Key was used with other parameters before. Send a new key with a new request, and the "
            "same body with a retry."
        )


def is_replayable(status: int, code: str | None) -> bool:
    """Return whether a retry gets this error again: it does if the error depends on the request alone."""
    return status in {400, 404, 413, 422} and code not in TRANSIENT_CODES
