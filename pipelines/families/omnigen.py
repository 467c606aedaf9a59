"""OmniGen: its prompts name the references."""

from collections.abc import Sequence
from typing import Any

from pipelines.families.generic import Call, Family


class OmniGen(Family):
    """Hooks of OmniGen, whose call takes the references as a list, each of which the prompt must name. Without
    torchvision the class has no processor."""

    classes = ("OmniGen*",)
    libraries = ("torchvision",)
    references_argument = "input_images"

    def prompt(self, text: str, references: int) -> str:
        """Return the prompt with the names of the references before it, if they are not in it."""
        names = [f"<img><|image_{number + 1}|></img>" for number in range(references)]
        return text if all(name in text for name in names) else f"{' '.join(names)} {text}"

    def reference_arguments(self, call: Call, first: Any, others: Sequence[Any]) -> dict[str, Any]:
        """Return the references as a list, also of one."""
        return {"input_images": [first, *others]}
