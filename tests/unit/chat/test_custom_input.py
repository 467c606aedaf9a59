"""The text of a custom tool's call, however its arguments are cut into pieces."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from server.flows.chat.custom_tools import CustomInput


@given(st.text(), st.booleans(), st.lists(st.integers(0, 200), max_size=8))
def test_the_pieces_add_up_to_the_text(text: str, ascii_only: bool, cuts: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    ends = [0, *sorted(min(cut, len(arguments)) for cut in cuts), len(arguments)]
    call = CustomInput()
    pieces = [call.feed(arguments[start:end]) for start, end in itertools.pairwise(ends)]
    assert "".join([*pieces, call.finish()]) == call.text == text


def test_a_text_that_was_cut_off_is_there_up_to_the_cut() -> None:
    call = CustomInput()
    assert call.feed('{"input": "one\\ntwo\\') == "one\ntwo"
    assert call.finish() == ""


def test_arguments_of_another_shape_are_the_text() -> None:
    call = CustomInput()
    assert call.feed('{"patch": 3}') == ""
    assert call.finish() == '{"patch": 3}'
