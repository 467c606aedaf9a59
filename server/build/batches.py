"""Builds the flows of batches."""

from server.build.parts import Parts
from server.flows.batches.batches import Batches
from server.flows.batches.run import BatchRunner
from server.services import BatchFlows


def build_batches(parts: Parts) -> BatchFlows:
    """Build the flows of batches."""
    settings, store = parts.settings, parts.stores.batches
    runner = BatchRunner(store, parts.running.drain)
    flow = Batches(store, runner, parts.served.catalog, parts.running.expected_retries, settings)
    return BatchFlows(flow, runner)
