"""Waiting for a condition that no event announces."""

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 240.0  # only ends a test that has failed


async def eventually(condition: Callable[[], object]) -> None:
    """Returns once the condition is true; fails if that takes more than LIMIT_S."""
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until, f"still false after {LIMIT_S:g} s"
        await asyncio.sleep(0.01)
