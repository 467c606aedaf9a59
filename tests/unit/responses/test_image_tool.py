"""The request of the image tool: the model's arguments, the tool's own options, and which image is edited."""

from pathlib import Path
from typing import Any

import pytest

from server.catalog.images import load_catalog
from server.errors import BadRequest
from server.flows.references import Reference
from server.flows.responses.image_tool import ToolArguments, build_image_request, fit_tool, parse_tool_arguments
from server.flows.responses.plan import ImagePlan
from server.schemas.response_tools import ImageTool

REPOSITORY = Path(__file__).resolve().parents[3]
CATALOG = load_catalog(REPOSITORY / "model_configs", Path("/weights"))
NEWEST = Reference("input", b"newest")
SENT = Reference("input", b"sent")


def plan(explicit: tuple[Reference, ...] = (), newest: Reference | None = None, **options: Any) -> ImagePlan:
    tool = ImageTool(type="image_generation", **options)
    return ImagePlan(tool, CATALOG.models["beta-3-pro-image-count"], "http://x/cdn", explicit, newest, None, 0)


@pytest.mark.parametrize(
    ("arguments", "can_edit", "tool_arguments"),
    [
        ('{"prompt": "a boat", "action": "generate"}', True, ToolArguments("a boat", "generate")),
        ('{"prompt": "make it blue", "action": "edit"}', True, ToolArguments("make it blue", "edit")),
        ('{"prompt": "make it blue", "action": "edit"}', False, ToolArguments("make it blue", "generate")),
        ('{"prompt": "make it blue"}', True, ToolArguments("make it blue", "edit")),
        ('{"prompt": "a bo', False, ToolArguments("the fallback", "generate")),
        ('{"prompt": "  "}', True, ToolArguments("the fallback", "edit")),
        ("[]", False, ToolArguments("the fallback", "generate")),
    ],
)
def test_arguments_that_can_not_be_read_are_replaced_by_the_fallback(
    arguments: str, can_edit: bool, tool_arguments: ToolArguments
) -> None:
    assert parse_tool_arguments(arguments, "the fallback", can_edit=can_edit) == tool_arguments


def test_without_a_fallback_unreadable_arguments_are_refused() -> None:
    with pytest.raises(BadRequest, match="without a prompt"):
        parse_tool_arguments('{"prompt": 3}', None, can_edit=False)


@pytest.mark.parametrize(
    ("image_plan", "tool_arguments", "references"),
    [
        (plan(newest=NEWEST), ToolArguments("x", "edit"), (NEWEST,)),
        (plan(newest=NEWEST), ToolArguments("x", "generate"), ()),
        (plan(newest=NEWEST, action="edit"), ToolArguments("x", "generate"), (NEWEST,)),
        (plan(newest=NEWEST, action="generate"), ToolArguments("x", "edit"), ()),
        (plan(explicit=(SENT,), newest=SENT), ToolArguments("x", "generate"), (SENT,)),
        (plan(explicit=(SENT,), newest=NEWEST), ToolArguments("x", "edit"), (SENT,)),
        (plan(explicit=(SENT,), newest=SENT, action="generate"), ToolArguments("x", "edit"), ()),
    ],
)
def test_the_image_that_was_sent_wins_over_the_newest(
    image_plan: ImagePlan, tool_arguments: ToolArguments, references: tuple[Reference, ...]
) -> None:
    assert build_image_request(image_plan, tool_arguments).references == references


def test_an_edit_of_nothing_is_refused() -> None:
    with pytest.raises(BadRequest, match="no image to edit"):
        build_image_request(plan(action="edit"), ToolArguments("x", "generate"))


def test_the_options_of_the_tool_are_those_of_the_request() -> None:
    call = build_image_request(
        plan(size="16:9", quality="auto", output_format="jpeg", seed=7), ToolArguments("a boat", "generate")
    )
    assert (call.size, call.quality, call.output_format, call.seed, call.n) == ("16:9", None, "jpeg", 7, 1)
    assert (call.model, call.prompt) == ("beta-3-pro-image-count", "a boat")


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({"quality": "low", "size": "1024x1024"}, ["quality"]),
        ({"quality": "auto", "input_fidelity": "high"}, ["input_fidelity"]),
        ({"background": "transparent", "size": "17x19"}, []),  # no model here draws those: they are refused
        ({}, []),
    ],
)
def test_options_that_a_model_does_not_know_are_left_out_where_it_was_not_chosen(
    options: dict[str, Any], left_out: list[str]
) -> None:
    tool = ImageTool(type="image_generation", **options)
    fitted, names = fit_tool(tool, CATALOG.models["beta-2.5-flash-image-count"])
    assert names == left_out
    assert fitted == ImageTool(type="image_generation", **{k: v for k, v in options.items() if k not in left_out})
