"""The image tool that chat models can call, in the wording that starter-chat is trained on."""

from typing import Any, Final

# With action "generate", `prompt` describes a new image ("a red boat at sea"). With "edit" it is an instruction
# ("make the boat blue"), which the server passes to an editing model with the newest image of the conversation.
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
