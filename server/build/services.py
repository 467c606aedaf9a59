"""Builds a server's services, in the order in which each needs the others."""

from server.build.batches import build_batches
from server.build.chats import build_chats, build_runner, build_sources
from server.build.images import build_admission, build_creator, build_images
from server.build.operations import build_operations
from server.build.parts import build_parts
from server.flows.catalog.start import StartCatalog
from server.flows.moderations import Moderations
from server.flows.sign_in import build_sign_in
from server.services import Services
from server.settings import Settings


def build_services(settings: Settings, start: StartCatalog) -> Services:
    """Build all parts of a server. Raises StartError for settings that this machine or this catalog can't serve."""
    parts = build_parts(settings, start.catalog)
    admission = build_admission(parts)
    runner = build_runner(parts)
    sources = build_sources(parts, admission, runner)
    creator = build_creator(parts, admission, sources)
    images = build_images(parts, creator, admission)
    chats, responses = build_chats(parts, admission, runner, sources, creator, images.calls)
    cluster, operations = build_operations(parts, admission, start.version)
    return Services(
        settings=settings,
        stores=parts.stores,
        engines=parts.engines,
        running=parts.running,
        served=parts.served,
        telemetry=parts.telemetry,
        cluster=cluster,
        admission=admission,
        images=images,
        chats=chats,
        responses=responses,
        batches=build_batches(parts),
        moderations=Moderations(parts.served.policy, admission.moderator, admission.references),
        sign_in=build_sign_in(settings, parts.engines.upstreams.http, parts.stores.database, parts.served.catalog),
        operations=operations,
    )
