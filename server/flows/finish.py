"""Money and files are never left halfway."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def finish_even_if_cancelled(work: Coroutine[Any, Any, Result]) -> Result:
    """Wait for the work, then let the cancellation through."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        raise
