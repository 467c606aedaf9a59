"""The Range header."""

import pytest

from server.routes.files import InvalidRange, OutsideOfFile, read_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=2-4", (2, 5)),
        ("Bytes = 2-4", (2, 5)),
        ("bytes=4-", (4, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=2-400", (2, 10)),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
    ],
)
def test_a_range_is_bytes_of_the_file(header: str | None, expected: tuple[int, int] | None) -> None:
    assert read_range(header, 10) == expected


@pytest.mark.parametrize("header", ["bytes=-", "bytes=a-b", "bytes=4", "bytes=", "bytes=5-2", f"bytes={'1' * 5000}-"])
def test_a_malformed_range_is_refused(header: str) -> None:
    with pytest.raises(InvalidRange):
        read_range(header, 10)


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=12-15", "bytes=-0"])
def test_a_range_after_the_end_is_refused(header: str) -> None:
    with pytest.raises(OutsideOfFile):
        read_range(header, 10)
