"""The moderation policy in use. A reload replaces it whole; a check that runs keeps the one that it began with."""

import asyncio

from server.moderation.policy import Policy


class ServedPolicy:
    """The policy in use. `lock` is held while it is replaced."""

    def __init__(self, policy: Policy) -> None:
        self.current = policy
        self.lock = asyncio.Lock()
