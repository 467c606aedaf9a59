"""What `darkroom checkpoints proof` may be asked for."""

from typing import Any

import pytest

from server.cli.checkpoints import _axis
from server.errors import BadRequest, StartError
from server.schemas.checkpoints import ProofRequest
from server.schemas.validation import validate

BODY = {"candidates": [{"name": "x"}], "prompts": ["a house"]}


@pytest.mark.parametrize(
    ("axis", "param", "message"),
    [
        ({"depth": [1]}, "axis", "Invalid 'axis': expected one of steps, guidance, scheduler, shift."),
        (
            {"steps": [1], "guidance": [2.0]},
            "axis",
            "Invalid 'axis': expected one of steps, guidance, scheduler, shift.",
        ),
        ({"steps": []}, "axis.steps", "Invalid 'axis.steps': it must not be empty."),
        ({"steps": [0]}, "axis.steps[0]", "integer below minimum value"),
        ("steps", "axis", "expected an object"),
    ],
)
def test_another_axis_is_refused_with_those_that_there_are(axis: Any, param: str, message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        validate(ProofRequest, {**BODY, "axis": axis}, strict=True)
    assert (refused.value.param, message in refused.value.message) == (param, True), refused.value.message


def test_an_unknown_value_of_a_candidate_is_named() -> None:
    candidates = [{"name": "x", "sampling": {"cfg": 2}}]
    with pytest.raises(BadRequest, match=r"Unknown parameter: 'candidates\[0\].sampling.cfg'"):
        validate(ProofRequest, {**BODY, "candidates": candidates}, strict=True)


def test_the_command_reads_numbers_and_names() -> None:
    assert _axis("steps=10, 20") == {"steps": [10, 20]}
    assert _axis("scheduler=DDIMScheduler") == {"scheduler": ["DDIMScheduler"]}
    for text in ("steps", "steps=", "steps=,"):
        with pytest.raises(StartError, match="takes a name and values"):
            _axis(text)
