"""Chat jobs, and the events of a job.

They come in this order: `Queued` (perhaps), `Admitted` once the prompt is known to fit, `Started` when the first of its
sequences is scheduled, deltas of its choices, one `ChoiceFinished` a choice, and `ChatFinished` or `Failed` last. An
invalid request is `Failed` before `Admitted`. A job that has started and fails has `PartialUsage` before `Failed`; one
that gives up its place for a while is `Queued` again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from pipelines.protocol.images import Dtype, Failed, Quantize, Queued, RawImage, Started
from pipelines.protocol.tiers import ServiceTier

FinishReason = Literal["stop", "length", "tool_calls"]
Message = Mapping[str, Any]
SEEDS: Final = 2**64  # more than a request can choose from


def join_texts(texts: Iterable[str]) -> str:
    """Return texts that were sent in parts as one text. Each begins a line, so that no words are glued; where there is
    white space between two of them, it is enough."""
    joined = ""
    for text in texts:
        apart = not (joined and text) or joined[-1].isspace() or text[0].isspace()
        joined += text if apart else f"\n{text}"
    return joined


@dataclass(frozen=True, slots=True)
class ChatSpec:
    """One chat checkpoint of the catalog."""

    name: str
    path: Path  # a transformers folder, or a .gguf file
    tools: bool = False
    vision: bool = False
    context: int | None = None  # prompt and answer, in tokens; None: the model's own maximum
    max_batch: int = 32  # sequences that decode together
    max_string: int | None = None  # characters of a string that a schema does not bound; None: any number
    dtype: Dtype = "auto"  # bfloat16 on a GPU, float32 on a CPU
    quantize: Quantize = "none"  # its weights while they are loaded: "int8", "int4" or "nf4"
    syntax: str | None = None  # how it writes thoughts and calls, by its name in the table; None: found out
    defaults: tuple[tuple[str, float], ...] = ()  # fields of `ChatSampling` that requests leave out
    version: str = ""  # of its files: others under the same path are another checkpoint
    source: str = field(default="", compare=False)  # its model in chat.toml, for people: the first, of several


@dataclass(frozen=True, slots=True)
class ChatCapabilities:
    """The facts about a chat checkpoint that were found when it was loaded."""

    context: int  # prompt and answer, in tokens
    vision: bool  # sees images
    tools: bool  # its chat template shows it the tools of a request
    unbatched_reason: str | None  # why its answers are written one at a time; None: they share a batch
    notes: tuple[str, ...] = ()  # for the operator


@dataclass(frozen=True, slots=True)
class ChatSampling:
    """How the next token is sampled. Temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit
    top_k: int = 0  # of the likeliest tokens; 0: of all
    min_p: float = 0.0  # tokens that are less likely than this part of the likeliest one are left out
    repetition_penalty: float = 1.0  # divides the logits of tokens that were there, in the prompt too
    min_tokens: int = 0  # before so many, no token ends the answer, unless a grammar says what it is
    unset: frozenset[str] = frozenset()  # fields that the request left out, which take the checkpoint's defaults

    def with_defaults(self, defaults: tuple[tuple[str, float], ...]) -> Self:
        """Return the same with a checkpoint's defaults in the fields that are unset."""
        found: dict[str, Any] = {name: value for name, value in defaults if name in self.unset}
        return replace(self, **found, unset=frozenset())


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The answer is one JSON value of this schema; without a schema, any object."""

    schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ChatJob:
    """One conversation to be answered n times, each with a seed of its own.

    Messages are OpenAI's, checked: content is a string, None, or parts of the types text and image_url. The k-th
    image_url part, counted over all messages, stands for `images[k]`; its URL is not used.
    """

    id: str
    checkpoint: ChatSpec
    messages: tuple[Message, ...]
    seed: int
    time_limit_s: float  # without a token, while it runs
    images: tuple[RawImage, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()  # {"type": "function", "function": {name, description, parameters}}
    tool_choice: Literal["none", "auto", "required"] = "auto"
    allowed_tools: tuple[str, ...] = ()  # names that may be called; a named tool_choice is "required" and this one name
    parallel_tool_calls: bool = True
    format: JsonFormat | None = None  # None: plain text
    max_tokens: int = 2**31  # limited by what the context leaves
    sampling: ChatSampling = field(default_factory=ChatSampling)
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()  # which end the answer as the checkpoint's own do
    n: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    truncate: bool = False  # drop whole turns, the oldest first, until the rest fits; otherwise fail
    template_options: Mapping[str, Any] = field(default_factory=dict)  # further variables of the chat template
    thinking_budget: int | None = None  # tokens of thoughts; 0: none; None: what the effort or the model says
    strict_tools: frozenset[str] = frozenset()  # whose schemas are enforced whole, or the request is invalid
    input_grammars: Mapping[str, str] = field(default_factory=dict)  # tool -> Lark grammar of its argument `input`
    cache_scope: str = ""  # jobs of one scope use what others of it have computed of the same beginning
    tier: ServiceTier = "default"
    owner: str = ""  # opaque, equal for the jobs of one API key: keys take turns

    def choice_seed(self, choice: int) -> int:
        """Return the seed of a choice: the job's of the first one, and of others seeds that no request has, so that
        requests with seeds in a row share no answers."""
        return self.seed + choice * SEEDS


@dataclass(frozen=True, slots=True)
class CountJob:
    """Counts a conversation's tokens. Its events: `Queued` (perhaps), `Started`, then `CountFinished` or `Failed`."""

    id: str
    checkpoint: ChatSpec
    messages: tuple[Message, ...]
    images: tuple[RawImage, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    time_limit_s: float = 60.0
    owner: str = ""  # as a ChatJob's


@dataclass(frozen=True, slots=True)
class CountFinished:
    """The last event of a count that succeeded."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request is valid: only the engine can fail it now. The prompt counts once for any n."""

    prompt_tokens: int
    dropped_messages: int = 0  # by `truncate`
    unused_options: tuple[str, ...] = ()  # template options that have no effect
    ignored: tuple[str, ...] = ()  # paths of what else has none, as a chat completion's body has them


@dataclass(frozen=True, slots=True)
class TopToken:
    """A likely token at this position. `text` is for people to read; `data` are its bytes."""

    text: str
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The sampled token, and the likeliest ones at its position."""

    text: str
    data: bytes
    logprob: float
    top: tuple[TopToken, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of a choice's text: whole characters, and nothing that may be part of a stop string."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the text that a reasoning model writes before its answer."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call. The first delta of call `index` has its id and name; later ones have only arguments."""

    choice: int
    index: int
    arguments: str  # a piece of JSON text
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The last event of this choice."""

    choice: int
    reason: FinishReason
    stop: str | None = None  # the stop string that ended it, if one did


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """The tokens of a chat, by the tokenizer's own counts."""

    prompt_tokens: int
    completion_tokens: int  # of all choices, their end tokens included
    reasoning_tokens: int = 0  # of these, before the answer
    cached_tokens: int = 0  # of the prompt, that were computed for an earlier request


@dataclass(frozen=True, slots=True)
class ChatFinished:
    """The last event of a chat that succeeded."""

    usage: ChatUsage
    run_s: float  # from `Started` to the last token


@dataclass(frozen=True, slots=True)
class PartialUsage:
    """The tokens of a chat that was started and then failed or was cancelled."""

    usage: ChatUsage


ChatDelta = TextDelta | ReasoningDelta | ToolCallDelta
ChatEvent = (
    Queued | Admitted | Started | ChatDelta | ChoiceFinished | ChatFinished | PartialUsage | CountFinished | Failed
)
