"""Builds the flows of chats and of responses."""

from server.build.parts import Parts
from server.flows.admission import Admission
from server.flows.chat.chats import Chats
from server.flows.chat.keyed import KeyedChats
from server.flows.chat.run import ChatRunner
from server.flows.chat.source import ChatParts
from server.flows.chat_images.run import ChatImages
from server.flows.images.create import ImageCreator
from server.flows.images.idempotency import ImageCalls
from server.flows.responses.compact import Compactor
from server.flows.responses.conversations import Conversations
from server.flows.responses.count_tokens import TokenCounter
from server.flows.responses.create import ResponseCreator, ResponseParts
from server.flows.responses.history import History
from server.flows.responses.image_tool import ImageToolRunner
from server.flows.responses.planner import Planner
from server.flows.responses.retrieve import Responses
from server.flows.responses.tool_loop import ToolLoop
from server.flows.retries import EqualCalls
from server.services import ChatFlows, ResponseFlows


def build_chats(
    parts: Parts, admission: Admission, runner: ChatRunner, chats: Chats, creator: ImageCreator, calls: ImageCalls
) -> tuple[ChatFlows, ResponseFlows]:
    """Build the flows of chats and responses. A chat that draws is run as a response is."""
    image_tool = ImageToolRunner(calls, creator, parts.stores.files)
    loop = ToolLoop(chats, admission.moderator, image_tool, parts.stores.responses, parts.running.expected_retries)
    responses = _responses(parts, admission, creator, runner, loop, chats)
    files, links = parts.stores.files, parts.settings.links_in_chats
    image = ChatImages(calls, responses.creator, admission.references, files, links=links)
    keyed = KeyedChats(parts.running.chats, parts.stores.calls, admission.limiter, parts.running.background)
    return ChatFlows(chats, keyed, image), responses


def build_runner(parts: Parts) -> ChatRunner:
    """Build what runs chats on the local worker."""
    telemetry = parts.telemetry
    return ChatRunner(
        parts.engines.chat, telemetry.metrics, telemetry.tracing, parts.stores.database, parts.running.background
    )


def build_sources(parts: Parts, admission: Admission, runner: ChatRunner) -> Chats:
    """Build the chats of every model."""
    used = ChatParts(
        parts.served.catalog,
        admission.moderator,
        admission.references,
        runner,
        parts.engines.upstreams,
        parts.telemetry.metrics,
        time_limit_s=parts.settings.job_time_limit_s,
        leave_out_pictures=parts.settings.leave_out_pictures,
        cache_across_keys=parts.settings.chat_cache_across_keys,
    )
    return Chats(used, admission.limiter, parts.running.chats, parts.running.drain)


def _responses(
    parts: Parts, admission: Admission, creator: ImageCreator, runner: ChatRunner, loop: ToolLoop, chats: Chats
) -> ResponseFlows:
    catalog, stores = parts.served.catalog, parts.stores
    history = History(stores, admission.references)
    planner = Planner(catalog, history, admission.references, creator)
    stored = Responses(parts.running, stores, EqualCalls(parts.running.expected_retries, stores.gateways))
    starter = ResponseCreator(
        ResponseParts(catalog, history, planner, loop, stored, stores.responses),
        parts.running,
        admission.limiter,
        retry_grace_s=parts.settings.retry_grace_s,
        leave_out_pictures=parts.settings.leave_out_pictures,
    )
    return ResponseFlows(
        starter,
        stored,
        Conversations(stores.conversations, history, stores.files, admission.limiter),
        Compactor(catalog, history, chats, stores.files),
        TokenCounter(catalog, history, planner, runner, admission.limiter),
    )
