"""Threads by purpose: work that is stuck delays only work of its own kind."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class NotBegun(Exception):
    """The work waited too long for a thread, and will not be done."""


class Threads:
    """`count` threads for one kind of blocking work. They start when they are first needed.

    The caller's context variables, such as the fields of its log lines, go with its work. If a caller is cancelled, its
    work goes on if it has begun, and else never begins.
    """

    def __init__(self, name: str, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Run the work in a thread, and return its result. Raises the work's exceptions."""
        return await asyncio.wrap_future(self._submit(partial(work, *args, **kwargs)))

    async def run_if_begun_within(self, limit_s: float, work: Callable[[], Result]) -> Result:
        """Run work and return its result, as `run` does. Raises NotBegun if no thread was free for `limit_s` seconds;
        work that has begun is awaited to its end."""
        submitted = self._submit(work)
        result = asyncio.wrap_future(submitted)
        try:
            ended, _ = await asyncio.wait({result}, timeout=limit_s)
            if not ended and submitted.cancel():  # which fails once it has begun
                raise NotBegun
            return await result
        finally:
            result.cancel()  # if the caller was; `wait` leaves it alone

    def _submit(self, work: Callable[[], Result]) -> "Future[Result]":
        return self._executor.submit(copy_context().run, work)
