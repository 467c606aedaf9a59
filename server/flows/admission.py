"""The checks that every request passes before its flow begins."""

from dataclasses import dataclass

from server.flows.moderation import Moderator
from server.flows.rate_limits import RateLimiter
from server.flows.references import ReferenceLoader


@dataclass(frozen=True, slots=True)
class Admission:
    """The rate limits, the moderation and the loading of references that every request passes."""

    limiter: RateLimiter
    moderator: Moderator
    references: ReferenceLoader
