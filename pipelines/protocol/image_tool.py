"""The image tool as the starter has learned to call it. Any chat checkpoint can be offered the same one."""

from typing import Any, Final

# `prompt` describes a new picture ("a red boat at sea"), or is the instruction of an edit ("make the boat blue"): the
# server hands the newest picture of the chain to a model that edits by instruction. `action` says which of the two.
IMAGE_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "image_generation",
        "description": "Draw a picture, or edit the newest one",
        "parameters": {
            "type": "object",
            "properties": {
                "prompt": {"type": "string", "description": "What to draw, or what to change"},
                "action": {"type": "string", "enum": ["generate", "edit"]},
            },
            "required": ["prompt", "action"],
        },
    },
}
