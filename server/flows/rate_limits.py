"""How many calls a key may have at once, so that no key can fill the queues alone, and how many a minute it may begin.

Image calls, chats and responses count alike. A response counts once: it chats and draws in the place that it has. A
retry that gets an earlier call's answer does not count. Each API process counts for itself.
"""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

from limits import RateLimitItemPerMinute

from server.accounts.keys import Key
from server.errors import RateLimited
from server.services import Services

Item = TypeVar("Item")


def check_limit(services: Services, key: Key) -> None:
    """Raises RateLimited when the key has as many calls as it may, or has begun as many; else this is one more."""
    most = most_running(services, key)
    if now_running(services, key) >= most:
        raise RateLimited(
            f"This key has {most} calls running, which is its limit. Wait for one of them to end, or ask the operator "
            "for a higher limit (darkroom keys set --max-running).",
            _next_end_s(services, key),
            limit_headers(services, key),
        )
    rate = _rate(key)
    if rate is not None and not services.rates.hit(rate, key.id):
        raise RateLimited(
            f"This key may begin {key.per_minute} calls a minute. Wait a moment, or ask the operator for a higher "
            "limit (darkroom keys set --per-minute).",
            services.rates.get_window_stats(rate, key.id).reset_time - time.time(),
            limit_headers(services, key),
        )


@contextmanager
def place(services: Services, key: Key) -> Iterator[None]:
    """A place among the key's calls, while this is entered. Raises RateLimited."""
    check_limit(services, key)
    with services.places.taken(key.id):
        yield


async def placed(services: Services, key: Key, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """The items, with a place among the key's calls until the last of them. Raises RateLimited before the first."""
    async with aclosing(items):
        with place(services, key):
            async for item in items:
                yield item


def now_running(services: Services, key: Key) -> int:
    """How many calls the key has."""
    return services.calls.of_key(key.id) + _talks(services, key)


def most_running(services: Services, key: Key) -> int:
    """The key's own limit or else the server's."""
    return services.settings.max_running_per_key if key.max_running is None else key.max_running


def limit_headers(services: Services, key: Key) -> dict[str, str]:
    """OpenAI's headers: of the calls a minute if those are limited, else of the calls at once, which reset when they
    are done."""
    rate = _rate(key)
    if rate is not None:
        stats = services.rates.get_window_stats(rate, key.id)
        return _headers(rate.amount, stats.remaining, max(0.0, stats.reset_time - time.time()))
    most = most_running(services, key)
    talk_s = services.chat.job_s if _talks(services, key) else 0.0
    return _headers(most, max(0, most - now_running(services, key)), max(services.backlog.left_s(key.id), talk_s))


def _rate(key: Key) -> RateLimitItemPerMinute | None:
    return None if key.per_minute is None else RateLimitItemPerMinute(key.per_minute)


def _headers(most: int, remaining: int, reset_s: float) -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": str(most),
        "x-ratelimit-remaining-requests": str(remaining),
        "x-ratelimit-reset-requests": duration(reset_s),
    }


def duration(seconds: float) -> str:
    """As Go writes durations: 120ms, 1s, 6m0s, 1h0m0s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest_s}s" if hours else f"{minutes}m{rest_s}s" if minutes else f"{rest_s}s"


def _talks(services: Services, key: Key) -> int:
    """The key's chats and responses."""
    return services.live.of_key(key.id) + services.places.of_key(key.id)


def _next_end_s(services: Services, key: Key) -> float:
    """When the first of the key's calls may end: a picture by what it still needs, talk by what chats lately took."""
    talks = _talks(services, key)
    pictures_s = [services.backlog.next_end_s(key.id)] if services.calls.of_key(key.id) else []
    return min([*pictures_s, *([services.chat.job_s / talks] if talks else [])], default=0.0)
