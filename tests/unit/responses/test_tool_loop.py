"""The request of each turn of the chat model."""

from dataclasses import replace
from typing import Any

from pipelines.protocol.chat import ChatUsage
from server.flows.chat.request import ChatRequest
from server.flows.responses.plan import ResponsePlan
from server.flows.responses.tool_loop import MAX_TURNS, LoopState, next_turn
from server.flows.responses.tools import IMAGE_FUNCTION, ResponseTools, read_tools
from server.schemas.response_tools import FunctionTool, ImageTool

TOOLS = read_tools(
    [ImageTool(type="image_generation"), *(FunctionTool(type="function", name=name) for name in ("look", "listen"))],
    "auto",
)


def plan(tools: ResponseTools = TOOLS, max_tokens: int | None = None) -> ResponsePlan:
    unused: Any = None
    request = ChatRequest(messages=(), tool_choice=tools.mode, allowed_tools=tools.allowed, max_tokens=max_tokens)
    return ResponsePlan(unused, unused, request, unused, (), (), (), None, tools, None)


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
    assert next_turn(plan(max_tokens=100), spent, 1, 5).max_tokens == 70
    assert next_turn(plan(max_tokens=10), spent, 1, 5).max_tokens == 1
