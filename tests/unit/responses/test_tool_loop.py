"""The request of each turn of the chat model."""

from dataclasses import replace
from typing import Any

from pipelines.protocol.chat import ChatSampling, ChatUsage
from server.flows.responses.plan import ResponsePlan
from server.flows.responses.tool_loop import MAX_TURNS, LoopState, next_turn
from server.flows.responses.tools import IMAGE_FUNCTION, read_tools
from server.schemas.response_tools import FunctionTool, ImageTool

TOOLS = read_tools(
    [ImageTool(type="image_generation"), *(FunctionTool(type="function", name=name) for name in ("look", "listen"))],
    "auto",
)


def plan(**options: Any) -> ResponsePlan:
    unused: Any = None
    fields: dict[str, Any] = {
        "key": unused, "chat": unused, "moderation": unused, "inputs": (), "messages": (),
        "pictures": (), "new_texts": (), "new_pictures": (), "image": None, "tools": TOOLS,
        "parallel_tool_calls": True, "max_tool_calls": None, "format": None,
        "max_output_tokens": None, "sampling": ChatSampling(), "truncate": False, "top_logprobs": 0,
        "logprobs": False, "template_options": {},
    }  # fmt: skip
    return ResponsePlan(**{**fields, **options})


def test_without_image_calls_left_the_other_allowed_tools_remain() -> None:
    for planned, number, left in ((plan(), 0, 0), (plan(), MAX_TURNS - 1, 5)):
        turn = next_turn(planned, LoopState([]), number, left)
        assert (turn.tool_choice, turn.allowed_tools) == ("auto", ("look", "listen"))
    some = plan(tools=replace(TOOLS, allowed=(IMAGE_FUNCTION, "look")))
    assert next_turn(some, LoopState([]), 0, 0).allowed_tools == ("look",)
    only = plan(tools=replace(TOOLS, allowed=(IMAGE_FUNCTION,)))
    assert next_turn(only, LoopState([]), 0, 0).tool_choice == "none"


def test_a_required_tool_is_required_in_the_first_turn_alone() -> None:
    required = plan(tools=replace(TOOLS, mode="required", allowed=("look",)))
    assert next_turn(required, LoopState([]), 0, 5).tool_choice == "required"
    assert next_turn(required, LoopState([]), 1, 5).tool_choice == "auto"


def test_tokens_spent_count_towards_the_limit() -> None:
    spent = LoopState([], ChatUsage(10, 30))
    assert next_turn(plan(max_output_tokens=100), spent, 1, 5).max_tokens == 70
    assert next_turn(plan(max_output_tokens=10), spent, 1, 5).max_tokens == 1
