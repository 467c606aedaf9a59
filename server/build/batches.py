"""Builds the flows of batches."""

from server.build.parts import Parts
from server.flows.batches.batches import Batches
from server.flows.batches.run import BatchRunner
from server.services import BatchFlows


def build_batches(parts: Parts) -> BatchFlows:
    """Build the flows of batches."""
    settings, store = parts.settings, parts.stores.batches
    runner = BatchRunner(store, parts.running.drain)
    flow = Batches(
        store,
        runner,
        parts.served.catalog,
        folder=settings.batch_folder,
        max_bytes=settings.max_json_mib * 1024**2,
        keep_s=settings.idempotency_s,
    )
    return BatchFlows(flow, runner)
