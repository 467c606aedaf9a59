"""How many calls a key may have at once, so that no key can fill the queue alone."""

from server.accounts.keys import Key
from server.errors import RateLimited
from server.services import Services


def check_limit(services: Services, key: Key) -> None:
    """Raises RateLimited when the key has as many calls as it may."""
    most = most_running(services, key)
    if services.calls.of_key(key.id) >= most:
        raise RateLimited(
            f"This key has {most} calls running, which is its limit. Wait for one of them to end, or ask the operator "
            "for a higher limit (darkroom keys set --max-running).",
            services.backlog.next_end_s(key.id),
            limit_headers(services, key),
        )


def most_running(services: Services, key: Key) -> int:
    """The key's own limit or else the server's."""
    return services.settings.max_running_per_key if key.max_running is None else key.max_running


def limit_headers(services: Services, key: Key) -> dict[str, str]:
    """OpenAI's headers. What is limited is calls at once; it resets when the key's calls are done."""
    most = most_running(services, key)
    return {
        "x-ratelimit-limit-requests": str(most),
        "x-ratelimit-remaining-requests": str(max(0, most - services.calls.of_key(key.id))),
        "x-ratelimit-reset-requests": duration(services.backlog.left_s(key.id)),
    }


def duration(seconds: float) -> str:
    """As Go writes durations: 120ms, 1s, 6m0s, 1h0m0s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest_s}s" if hours else f"{minutes}m{rest_s}s" if minutes else f"{rest_s}s"
