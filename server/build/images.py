"""Builds the checks before every flow, and the flows of images."""

from server.backends.fetch import FetchRules, WebhookRules
from server.backends.signing import open_signer
from server.backends.storage import LocalStorage
from server.build.parts import Parts
from server.flows.admission import Admission
from server.flows.chat.chats import Chats
from server.flows.chat.prompt_writer import ChatPromptWriter
from server.flows.images.create import ImageCreator, ImageParts, ImageRules
from server.flows.images.idempotency import ImageCalls
from server.flows.images.jobs import ImageJobs
from server.flows.images.webhooks import Webhooks
from server.flows.moderation import Moderator
from server.flows.rate_limits import RateLimiter
from server.flows.references import MAX_FILE_BYTES, ReferenceLoader
from server.flows.retries import EqualCalls
from server.flows.thumbnails import Thumbnails
from server.services import ImageFlows


def build_admission(parts: Parts) -> Admission:
    """Build the limits of keys, moderation, and the loading of references."""
    settings, stores, engines = parts.settings, parts.stores, parts.engines
    return Admission(
        RateLimiter(parts.running, engines.chat, stores.claims, settings.max_running_per_key),
        Moderator(parts.served.policy, engines.classify, stores.database, parts.telemetry.metrics),
        ReferenceLoader(
            stores.results,
            stores.files,
            engines.decoders,
            FetchRules(settings.fetch, MAX_FILE_BYTES, settings.fetch_timeout_s, proxy=settings.proxy),
        ),
    )


def build_creator(parts: Parts, admission: Admission, chats: Chats) -> ImageCreator:
    """Build the creator that draws image calls, of images, chats and responses alike."""
    settings, catalog = parts.settings, parts.served.catalog
    writer = ChatPromptWriter(catalog, chats)
    drawn_by = ImageParts(catalog, parts.engines.image, admission.references, admission.moderator, writer)
    rules = ImageRules(
        max_n=settings.max_n,
        answers_with_bytes=settings.answers_with_bytes,
        time_limit_s=settings.job_time_limit_s,
        keep_prompts=settings.keep_prompts,
        marks=settings.mark_pictures,
        signer=open_signer(settings.c2pa_certificate, settings.c2pa_key, marks=settings.mark_pictures),
    )
    return ImageCreator(drawn_by, rules, parts.stores, parts.running, parts.telemetry)


def build_images(parts: Parts, creator: ImageCreator, admission: Admission) -> ImageFlows:
    """Build the flows of images."""
    settings, stores, running = parts.settings, parts.stores, parts.running
    return ImageFlows(
        ImageCalls(
            creator,
            running,
            stores.calls,
            admission.limiter,
            EqualCalls(running.expected_retries, stores.gateways),
            retry_grace_s=settings.retry_grace_s,
        ),
        ImageJobs(running.calls, stores.calls, stores.files, running.backlog, stores.gateways.owner),
        Webhooks(stores.webhooks, WebhookRules(settings.webhooks, settings.proxy), settings.webhook_secret.read_bytes),
        Thumbnails(stores.files, LocalStorage(settings.thumbnails), parts.engines.decoders),
    )
