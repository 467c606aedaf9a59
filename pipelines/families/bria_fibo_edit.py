"""Bria FIBO Edit: it takes prompts in JSON, and would stretch references to sizes of its own."""

import json
from typing import ClassVar

from pipelines.families.generic import Family

INSTRUCTION = "edit_instruction"


class BriaFiboEdit(Family):
    """Hooks of FIBO Edit, whose call resizes references unless it is told not to."""

    classes = ("BriaFiboEdit*",)
    reads_any_size = True
    always: ClassVar = {"_auto_resize": False}

    def prompt(self, text: str, references: int) -> str:
        """Return the prompt as it is if it is JSON with an instruction, else as the instruction of one."""
        try:
            has_instruction = INSTRUCTION in json.loads(text)
        except (ValueError, TypeError):  # of no JSON, and of a number in it
            has_instruction = False
        return text if has_instruction else json.dumps({INSTRUCTION: text}, ensure_ascii=False)
