"""OmniGen: its prompts name the references."""

from collections.abc import Sequence
from typing import Any

from pipelines.families.generic import Call, Family


class OmniGen(Family):
    """The call takes the references of a prompt in a list of their own."""

    classes = ("OmniGen*",)
    references_argument = "input_images"

    def reference_arguments(self, call: Call, first: Any, others: Sequence[Any]) -> dict[str, Any]:
        """Return the references; the prompt names each of them."""
        return {"input_images": [first, *others]}
