"""Which earlier call a request without an Idempotency-Key is for."""

from dataclasses import dataclass

import pytest

from server.accounts.calls import CallId
from server.flows.retries import choose_earlier
from server.state.active_calls import ActiveCall

FIRST, RETRY = False, True


@dataclass(frozen=True)
class Ended:
    """A call in the database."""

    id: str
    replayable: bool
    delivered: bool
    owner: str = "me"
    idempotency_key: str | None = None


def active(name: str, *, lost: bool) -> ActiveCall:
    call = ActiveCall(CallId(name, "key", "images.generations", "print", None), 9)
    call.was_followed, call.answered = True, not lost
    return call


@pytest.mark.parametrize(
    ("running", "ended", "says_retry", "another_expected", "chosen"),
    [
        ([], [], RETRY, False, None),
        ([], [("a", True, True)], RETRY, False, "a"),
        ([], [("a", True, True)], RETRY, True, None),  # another call is expected to be retried: this may be that
        ([], [("a", False, True)], RETRY, False, None),
        ([], [("a", False, True), ("b", True, True)], RETRY, False, None),  # the newest failed: it is run again
        ([], [("a", True, True), ("b", True, False)], RETRY, True, "b"),  # its answer was lost
        ([], [("a", True, False), ("b", True, False)], RETRY, False, "a"),
        ([], [("a", False, True), ("b", True, False)], RETRY, False, "b"),
        ([("r", False)], [], RETRY, False, "r"),
        ([("r", False)], [], RETRY, True, None),
        ([("r", False)], [("a", True, False)], RETRY, False, "a"),
        ([("r", True)], [("a", True, False)], RETRY, True, "r"),
        ([("q", True), ("r", True), ("s", False)], [], FIRST, False, "r"),
        ([], [("a", True, False)], FIRST, True, "a"),  # no header is needed
        ([("r", False)], [("a", True, True)], FIRST, False, None),  # a person means it twice
        ([], [("a", False, False)], FIRST, False, None),
    ],
)
def test_a_request_is_for_the_equal_call_that_has_lost_its_client(
    running: list[tuple[str, bool]],
    ended: list[tuple[str, bool, bool]],
    says_retry: bool,
    another_expected: bool,
    chosen: str | None,
) -> None:
    jobs = [active(name, lost=lost) for name, lost in running]
    match = choose_earlier(
        jobs, [Ended(*each) for each in ended], says_retry=says_retry, another_expected=another_expected
    )
    assert (match.call.id if isinstance(match, ActiveCall) else match and match.id) == chosen
