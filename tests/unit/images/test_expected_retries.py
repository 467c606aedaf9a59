"""Which retries are expected, on a clock of the test."""

from server.state.expected_retries import ExpectedRetries

SAME = ("key", "images.generations", "print")
OTHER = ("key", "images.generations", "another")


def test_each_answer_expects_one_retry_for_a_while() -> None:
    now = 0.0
    retries = ExpectedRetries(60, clock=lambda: now)
    retries.add(SAME)
    retries.add(SAME)
    assert retries.contains(SAME)
    assert not retries.contains(OTHER)
    retries.consume(OTHER)
    retries.consume(SAME)
    assert retries.contains(SAME)
    retries.consume(SAME)
    assert not retries.contains(SAME)
    retries.add(SAME)
    now = 61.0
    assert not retries.contains(SAME)
