"""What every request passes before its flow begins."""

from dataclasses import dataclass

from server.flows.moderation import Moderator
from server.flows.rate_limits import RateLimiter
from server.flows.references import ReferenceLoader


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of its key, the moderation of what it says, and the loading of the images that it names."""

    limiter: RateLimiter
    moderator: Moderator
    references: ReferenceLoader
