"""What the sides of a pipeline's pictures must be multiples of, by its own check of a call's arguments."""

import inspect
from typing import Any, Final

ODD: Final = 33  # a side of so many multiples is none of a larger multiple, and above the least size of any pipeline
LARGEST: Final = 4  # times the assumed multiple


def size_multiple(pipeline: Any, assumed: int) -> int:
    """`assumed`, or twice or four times as many px, where the pipeline refuses sides that are multiples of less.

    Nothing is drawn. A check that refuses all of these sizes has another reason, and so says nothing about them.
    """
    multiples = [assumed * 2**power for power in range(LARGEST.bit_length())]
    return next((multiple for multiple in multiples if _accepts(pipeline, multiple * ODD)), assumed)


def _accepts(pipeline: Any, side_px: int) -> bool:
    check = getattr(pipeline, "check_inputs", None)
    accepted = inspect.signature(check).parameters if check is not None else {}
    if check is None or not {"prompt", "height", "width"} <= accepted.keys():
        return True
    arguments = {name: None for name, parameter in accepted.items() if parameter.default is parameter.empty}
    try:
        check(**{**arguments, "prompt": "", "height": side_px, "width": side_px})
    except (ValueError, TypeError, AttributeError):  # also of arguments that it needs and that are None here
        return False
    return True
