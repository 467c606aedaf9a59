"""The part of an image that is drawn for a small hole in its mask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.checkpoints.work.plan import region_around
from pipelines.protocol.images import Box, RawImage
from server.flows.images.request import hole_of

NATIVE = 1024 * 1024


@pytest.mark.parametrize(
    ("hole", "size", "region"),
    [
        (Box(500, 500, 96, 96), (1085, 1450), Box(420, 420, 256, 256)),  # no more than four times as large
        (Box(0, 0, 200, 200), (1024, 1024), Box(0, 0, 400, 400)),
        (Box(900, 900, 124, 124), (1024, 1024), Box(768, 768, 256, 256)),
        (Box(100, 500, 300, 10), (1024, 1024), Box(0, 355, 600, 300)),  # not narrower than one half
        (Box(100, 100, 600, 600), (1024, 1024), None),
        (Box(0, 0, 3000, 2000), (3840, 2160), None),
        (Box(1000, 1000, 400, 400), (3840, 2160), Box(800, 800, 800, 800)),
        (Box(1000, 1000, 1200, 400), (3840, 2160), None),  # larger than what is drawn at once
    ],
)
def test_the_region_is_the_hole_with_its_surroundings(hole: Box, size: tuple[int, int], region: Box | None) -> None:
    assert region_around(hole, *size, NATIVE) == region


@given(data=st.data(), width=st.integers(64, 4000), height=st.integers(64, 4000))
def test_a_region_lies_in_the_image_around_its_hole(data: st.DataObject, width: int, height: int) -> None:
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    hole = Box(left, top, data.draw(st.integers(1, width - left)), data.draw(st.integers(1, height - top)))
    region = region_around(hole, width, height, NATIVE)
    if region is not None:
        assert 0 <= region.left <= hole.left
        assert 0 <= region.top <= hole.top
        assert hole.left + hole.width <= region.left + region.width <= width
        assert hole.top + hole.height <= region.top + region.height <= height


def test_the_hole_is_what_has_paint() -> None:
    data = bytearray(20 * 10)
    assert hole_of(RawImage(20, 10, "L", bytes(data))) is None
    for x, y in ((5, 3), (11, 7), (8, 2)):
        data[y * 20 + x] = 1
    assert hole_of(RawImage(20, 10, "L", bytes(data))) == Box(5, 2, 7, 6)
    assert hole_of(RawImage(20, 10, "L", b"\xff" * 200)) == Box(0, 0, 20, 10)
    assert hole_of(None) is None
