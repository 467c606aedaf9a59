"""Who was told to try again, on a clock of the test's."""

from server.state.expected_retries import ToldToRetry

SAME = ("key", "images.generations", "print")
OTHER = ("key", "images.generations", "another")


def test_each_answer_expects_one_retry_for_a_while() -> None:
    now = 0.0
    told = ToldToRetry(60, clock=lambda: now)
    told.note(SAME)
    told.note(SAME)
    assert told.expects(SAME)
    assert not told.expects(OTHER)
    told.settle(OTHER)
    told.settle(SAME)
    assert told.expects(SAME)
    told.settle(SAME)
    assert not told.expects(SAME)
    told.note(SAME)
    now = 61.0
    assert not told.expects(SAME)
