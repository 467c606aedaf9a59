"""What the chat model is asked in each of a response's turns."""

from typing import Any

from pipelines.protocol.chat import ChatSampling, ChatUsage
from server.flows.responses.context import IMAGE_FUNCTION
from server.flows.responses.plan import Plan
from server.flows.responses.tool_loop import MAX_TURNS, Progress, _next_turn

TOOLS = tuple({"type": "function", "function": {"name": name}} for name in (IMAGE_FUNCTION, "look", "listen"))


def plan(**options: Any) -> Plan:
    nobody: Any = None
    fields: dict[str, Any] = {
        "key": nobody, "source": nobody, "tally": nobody, "subject": nobody, "inputs": (), "messages": (),
        "pictures": (), "texts": (), "new_pictures": (), "image": None, "tools": TOOLS, "tool_choice": "auto",
        "allowed_tools": (), "parallel_tool_calls": True, "max_tool_calls": None, "format": None,
        "max_output_tokens": None, "sampling": ChatSampling(), "truncate": False, "top_logprobs": 0,
        "logprobs": False, "time_limit_s": 9.0,
    }  # fmt: skip
    return Plan(**{**fields, **options})


def test_without_drawings_left_the_other_tools_remain_that_were_allowed() -> None:
    for asked, number, left in ((plan(), 0, 0), (plan(), MAX_TURNS - 1, 5)):
        turn = _next_turn(asked, Progress([]), number, left)
        assert (turn.tool_choice, turn.allowed_tools) == ("auto", ("look", "listen"))
    some = plan(allowed_tools=(IMAGE_FUNCTION, "look"))
    assert _next_turn(some, Progress([]), 0, 0).allowed_tools == ("look",)
    only = plan(allowed_tools=(IMAGE_FUNCTION,))
    assert _next_turn(only, Progress([]), 0, 0).tool_choice == "none"


def test_what_is_demanded_holds_for_the_first_turn() -> None:
    asked = plan(tool_choice="required", allowed_tools=("look",))
    assert _next_turn(asked, Progress([]), 0, 5).tool_choice == "required"
    assert _next_turn(asked, Progress([]), 1, 5).tool_choice == "auto"


def test_what_was_said_is_taken_off_the_limit() -> None:
    spent = Progress([], ChatUsage(10, 30))
    assert _next_turn(plan(max_output_tokens=100), spent, 1, 5).max_tokens == 70
    assert _next_turn(plan(max_output_tokens=10), spent, 1, 5).max_tokens == 1
