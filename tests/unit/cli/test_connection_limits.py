"""Which connection goes when there are too many."""

import pytest

from server.cli.http_protocol import ConnectionLimits, most_connections
from server.http.public_address import trusted_networks


class Line:
    """A connection that can be dropped, and may have something to send."""

    def __init__(self) -> None:
        self.dropped = False
        self.has_unsent = False

    def drop(self) -> None:
        self.dropped = True


def admitted(limits: ConnectionLimits, address: str | None, count: int = 1) -> list[Line]:
    lines = [Line() for _ in range(count)]
    assert [limits.admit(line, address) for line in lines] == [True] * count
    return lines


def test_the_oldest_that_waits_makes_room() -> None:
    limits = ConnectionLimits(total=3, per_address=9)
    first, second, third = admitted(limits, "10.0.0.1", 3)
    limits.work(first)
    limits.work(second)
    limits.wait(second)
    (fourth,) = admitted(limits, "10.0.0.2")
    assert third.dropped
    second.has_unsent = True
    (fifth,) = admitted(limits, "10.0.0.3")
    assert fourth.dropped
    assert not any(line.dropped for line in (first, second, fifth))
    assert len(limits) == 3


def test_who_is_being_answered_or_still_reads_does_not_make_room() -> None:
    limits = ConnectionLimits(total=2, per_address=9)
    working, reading = admitted(limits, "10.0.0.1", 2)
    limits.work(working)
    reading.has_unsent = True
    refused = Line()
    assert not limits.admit(refused, "10.0.0.2")
    limits.wait(refused)  # has no effect on what was refused
    limits.remove(working)
    admitted(limits, "10.0.0.2")
    assert not reading.dropped


@pytest.mark.parametrize(
    ("addresses", "own"),
    [
        (["10.0.0.1", "::ffff:10.0.0.1"], True),
        (["2001:db8::1", "2001:db8::2"], True),  # one customer
        (["2001:db8::1", "2001:db8:0:1::1"], False),
        (["10.0.0.1", "10.0.0.2"], False),
        (["192.0.2.7", "192.0.2.7"], False),  # a proxy
        ([None, None], False),  # a Unix socket
    ],
)
def test_an_address_has_its_own_limit_and_a_proxy_has_none(addresses: list[str | None], own: bool) -> None:
    limits = ConnectionLimits(total=9, per_address=1, trusted=trusted_networks("192.0.2.0/24, /run/proxy.sock"))
    (stranger,) = admitted(limits, "198.51.100.1")
    (first,) = admitted(limits, addresses[0])
    (second,) = admitted(limits, addresses[1])
    assert first.dropped is own
    assert not any(line.dropped for line in (stranger, second))


def test_everything_may_be_trusted() -> None:
    limits = ConnectionLimits(total=9, per_address=1, trusted=trusted_networks("*"))
    lines = [*admitted(limits, "10.0.0.1", 2), *admitted(limits, "2001:db8::1", 2)]
    assert not any(line.dropped for line in lines)


@pytest.mark.parametrize(
    ("descriptors", "wanted", "most"), [(1024, None, 512), (1024, 600, 512), (1024, 100, 100), (10**6, None, 10_000)]
)
def test_half_of_the_descriptors_are_left_for_other_things(descriptors: int, wanted: int | None, most: int) -> None:
    assert most_connections(descriptors, wanted) == most
