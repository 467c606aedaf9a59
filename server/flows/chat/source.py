"""Where the events of chats come from: the interface of a local checkpoint and of another server."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from pipelines.protocol.chat import ChatEvent
from server.accounts.keys import Key
from server.backends.upstream import UpstreamClient
from server.catalog.chat import ChatModel
from server.flows.chat.completion import CompletionWriter
from server.flows.chat.events import AnswerEvent
from server.flows.chat.request import ChatRequest
from server.flows.chat.run import ChatRunner, UsageContext
from server.flows.moderation import Moderator
from server.flows.references import ReferenceLoader
from server.state.served import ServedCatalog
from server.telemetry.metrics import Metrics

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One chat that a key asks for. `values` are the fields of a chat completion, not validated.

    `stops`: the stop strings, where the protocol takes more of them than a chat completion does; else they are in
    `values`. `verbatim`: `values` are the caller's own body. So an upstream's answer is passed on as it is.
    """

    key: Key
    model: ChatModel
    endpoint: str  # as lists of jobs name it
    values: Json
    stops: tuple[str, ...] | None = None
    stream: bool = False
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat whose request is valid. Nothing of it runs before the first of its `events` is asked for."""

    events: Callable[[], AsyncGenerator[AnswerEvent, None]]  # raise ApiError, also later
    writer: CompletionWriter
    ignored: tuple[str, ...] = ()  # sent fields that have no effect, as a chat completion calls them


@dataclass(frozen=True, slots=True)
class ChatParts:
    """The parts that sources use. One for the whole server."""

    catalog: ServedCatalog
    moderator: Moderator
    references: ReferenceLoader
    runner: ChatRunner
    upstreams: UpstreamClient
    metrics: Metrics
    time_limit_s: float
    leave_out_pictures: bool  # for a model that does not see, in place of a refusal
    cache_across_keys: bool = False  # chats use what was computed for other keys


class ChatSource(ABC):
    """Answers the chats of one model."""

    @abstractmethod
    async def prepare(self, call: ChatCall) -> Chat:
        """Read and check the request. The events come moderated, from `Admitted` on. Raises BadRequest."""

    @abstractmethod
    def run(self, request: ChatRequest, usage: UsageContext) -> AsyncGenerator[ChatEvent, None]:
        """Yield the events of one answer, from `Admitted` to `ChatFinished`, without moderation. Raises ApiError, also
        later."""

    @abstractmethod
    async def count_tokens(self, call: ChatCall) -> int:
        """Return how many tokens the model reads for this call. Raises ApiError."""
