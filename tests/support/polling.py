"""Waiting for a condition that no event announces."""

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Returns once the condition is true; fails after the timeout."""
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still false after {timeout_s:g} s")
