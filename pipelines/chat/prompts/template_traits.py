"""What was found out about a chat template by rendering it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

TOOL_VARIABLES: Final = ("tools", "xml_tools", "available_tools", "custom_tools", "functions")
ToolForm = Literal["variable", "text", "system"]
# short: nine alphanumerics; function: functions.NAME:NUMBER, counted in the conversation; position: in each message
IdForm = Literal["own", "short", "function", "position"]


@dataclass(frozen=True, slots=True)
class ToolTraits:
    """Where a template shows tools: a variable of this name, or a key of that name in the system message."""

    name: str
    form: ToolForm = "variable"  # "text": a variable with functions as JSON text; "system": that text in the message
    complete: int = 0  # 1: tools need a description and properties; 2: so do their arguments; 3: of one type each


@dataclass(frozen=True, slots=True)
class CallTraits:
    """How a template takes the calls of earlier turns, and their results."""

    ids: IdForm = "own"
    arguments: Literal["object", "text"] = "object"
    several: bool = True  # in one message
    text: bool = True  # that stands beside them is shown
    text_and_thoughts: bool = True  # may both stand beside them
    shown: str = ""  # a probe's call as the template writes it


@dataclass(frozen=True, slots=True)
class EffortTraits:
    """What a template does with an effort of reasoning. `levels` are those to choose from; None: any will do."""

    name: str = "reasoning_effort"  # of the variable
    levels: tuple[str, ...] | None = None
    switches: bool = False  # without a level the model does not think


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a chat template takes, with tools or without them. The defaults are those of a template that takes
    everything."""

    parts: bool = False  # content is a list of parts, never a string
    unset_tools: bool = False  # without tools, the variable may not even be None
    system: bool = True
    system_in_loop: bool = True  # shown too where the results of tools come last
    developer: bool = False  # has a form of its own for this role
    leads: frozenset[tuple[str, str]] = frozenset()  # pairs of instructions that may begin a conversation
    late: frozenset[str] = frozenset()  # roles of instructions that may come later
    system_alone: bool = True
    user_runs: bool = True
    assistant_runs: bool = True
    assistant_first: bool = True
    user_after_tool: bool = True
    tools: ToolTraits | None = None  # None: shows no tools
    calls: CallTraits | None = None  # None: shows no calls
    tool_role: bool = False  # shows results of tools
    reasoning: str | None = None  # the key of a message's thoughts; "part": a part of its content; None: not shown
    switch: str | None = None  # the variable that switches thinking on and off
    effort: EffortTraits | None = None  # None: has no effect
    variables: frozenset[str] = frozenset()  # that the template reads
    problem: str | None = None  # why not even a user's message can be rendered


SWITCHES: Final[Mapping[str, tuple[Any, Any]]] = {  # variables of templates, with their values for off and on
    "enable_thinking": (False, True),
    "thinking": (False, True),
    "reasoning": (False, True),
    "thinking_budget": (0, -1),
    "skip_think": (True, False),
    "thinking_mode": ("disabled", "enabled"),
}
EFFORTS: Final = ("reasoning_effort", "thinking_effort", "reasoning_strength")  # variables of templates
LEVELS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # of reasoning, as APIs have them
USUAL_LEVELS: Final = ("low", "medium", "high")  # what a model knows whose template takes any word
