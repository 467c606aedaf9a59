"""What the image tool is asked for: the model's arguments, the tool's own options, and which picture is edited."""

from pathlib import Path
from typing import Any

import pytest

from pipelines.catalog.images import load_catalog
from server.errors import BadRequest
from server.flows.references import Reference
from server.flows.responses.image_tool import Wish, image_call, read_wish
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
    ("arguments", "can_edit", "wish"),
    [
        ('{"prompt": "a boat", "action": "generate"}', True, Wish("a boat", "generate")),
        ('{"prompt": "make it blue", "action": "edit"}', True, Wish("make it blue", "edit")),
        ('{"prompt": "make it blue", "action": "edit"}', False, Wish("make it blue", "generate")),
        ('{"prompt": "make it blue"}', True, Wish("make it blue", "edit")),
        ('{"prompt": "a bo', False, Wish("the words", "generate")),
        ('{"prompt": "  "}', True, Wish("the words", "edit")),
        ("[]", False, Wish("the words", "generate")),
    ],
)
def test_arguments_that_can_be_read_are_and_others_have_a_stand_in(arguments: str, can_edit: bool, wish: Wish) -> None:
    assert read_wish(arguments, "the words", can_edit=can_edit) == wish


def test_without_a_stand_in_unreadable_arguments_are_refused() -> None:
    with pytest.raises(BadRequest, match="without a prompt"):
        read_wish('{"prompt": 3}', None, can_edit=False)


@pytest.mark.parametrize(
    ("made", "wish", "references"),
    [
        (plan(newest=NEWEST), Wish("x", "edit"), (NEWEST,)),
        (plan(newest=NEWEST), Wish("x", "generate"), ()),
        (plan(newest=NEWEST, action="edit"), Wish("x", "generate"), (NEWEST,)),
        (plan(newest=NEWEST, action="generate"), Wish("x", "edit"), ()),
        (plan(explicit=(SENT,), newest=SENT), Wish("x", "generate"), (SENT,)),
        (plan(explicit=(SENT,), newest=NEWEST), Wish("x", "edit"), (SENT,)),
        (plan(explicit=(SENT,), newest=SENT, action="generate"), Wish("x", "edit"), ()),
    ],
)
def test_the_picture_that_was_sent_wins_over_the_newest(
    made: ImagePlan, wish: Wish, references: tuple[Reference, ...]
) -> None:
    assert image_call(made, wish).references == references


def test_an_edit_of_nothing_is_refused() -> None:
    with pytest.raises(BadRequest, match="no picture to edit"):
        image_call(plan(action="edit"), Wish("x", "generate"))


def test_the_tools_options_are_the_calls() -> None:
    call = image_call(plan(size="16:9", quality="auto", output_format="jpeg", seed=7), Wish("a boat", "generate"))
    assert (call.size, call.quality, call.output_format, call.seed, call.n) == ("16:9", None, "jpeg", 7, 1)
    assert (call.model, call.prompt) == ("beta-3-pro-image-count", "a boat")
