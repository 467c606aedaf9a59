"""The chat half of the contract between `server` and `pipelines`: jobs, and what an engine says about them.

A chat job's events, in order: `Queued` (perhaps), then `Admitted` once the prompt is known to fit, `Started` when it
gets a place in the batch, deltas of its choices, one `ChoiceFinished` a choice, and `ChatFinished` or `Failed` last.
What was started and does not succeed tells what it has `Spent` before its `Failed`. Whatever is wrong with the request
itself is a `Failed` before `Admitted`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipelines.protocol.images import Dtype, Failed, Picture, Queued, Started

FinishReason = Literal["stop", "length", "tool_calls"]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatSpec:
    """One chat checkpoint of the catalog."""

    name: str
    path: Path  # a transformers folder
    tools: bool = False
    vision: bool = False
    context: int | None = None  # prompt and answer, in tokens; None is all that the model was made for
    max_batch: int = 32  # sequences that decode together
    dtype: Dtype = "auto"  # bfloat16 on a GPU, float32 on a CPU


@dataclass(frozen=True, slots=True)
class ChatSampling:
    """How the next token is drawn. Temperature 0 takes the likeliest."""

    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The answer is one JSON value: of this schema, or any object when there is none."""

    schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ChatJob:
    """One conversation to be answered n times; choice i is drawn with seed + i.

    Messages are OpenAI's, checked: content is a string, None, or parts of the types text and image_url. The k-th
    image_url part, counted over all messages, shows `images[k]`; its URL is not looked at.
    """

    id: str
    checkpoint: ChatSpec
    messages: tuple[Message, ...]
    seed: int
    time_limit_s: float  # of running, not of waiting
    images: tuple[Picture, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()  # {"type": "function", "function": {name, description, parameters}}
    tool_choice: Literal["none", "auto", "required"] = "auto"
    allowed_tools: tuple[str, ...] = ()  # names that may be called; a named tool_choice is "required" and this one name
    parallel_tool_calls: bool = True
    format: JsonFormat | None = None  # None is plain text
    max_tokens: int = 2**31  # cut to what the context leaves
    sampling: ChatSampling = field(default_factory=ChatSampling)
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    truncate: bool = False  # drop the oldest turns, whole, until the rest fits; False fails instead


@dataclass(frozen=True, slots=True)
class CountJob:
    """How many tokens a conversation is. Its events: `Queued` (perhaps), `Started`, then `Counted` or `Failed`."""

    id: str
    checkpoint: ChatSpec
    messages: tuple[Message, ...]
    images: tuple[Picture, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    time_limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The prompt's length."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request is sound: nothing but the engine can fail it now. The prompt is counted once, whatever n."""

    prompt_tokens: int
    dropped_messages: int = 0  # by `truncate`


@dataclass(frozen=True, slots=True)
class TopToken:
    """A token that could have come here. `text` is for reading; `data` are its bytes."""

    text: str
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The token that came, and the likeliest ones."""

    text: str
    data: bytes
    logprob: float
    top: tuple[TopToken, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of a choice's text: whole characters, and nothing that may turn out to be a stop string."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what a thinking model thinks before it answers."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call. Call `index` begins with its id and name; later deltas carry arguments alone."""

    choice: int
    index: int
    arguments: str  # a piece of JSON text
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """Nothing more comes of this choice."""

    choice: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """The tokenizer's own counts."""

    prompt_tokens: int
    completion_tokens: int  # of all choices, their end tokens included
    reasoning_tokens: int = 0  # those of them that were thought


@dataclass(frozen=True, slots=True)
class ChatFinished:
    """The last event of a chat that succeeded."""

    usage: ChatUsage
    run_s: float  # from its place in the batch to its last token


@dataclass(frozen=True, slots=True)
class Spent:
    """What a chat that does not succeed has used until its end."""

    usage: ChatUsage


ChatDelta = TextDelta | ReasoningDelta | ToolCallDelta
ChatEvent = Queued | Admitted | Started | ChatDelta | ChoiceFinished | ChatFinished | Spent | Counted | Failed
