"""Which image worker loads which checkpoint at start, by size. Pure.

A worker can draw any checkpoint that it may, and loads it when the first job for it comes. Placement says where each
is loaded before that: every checkpoint on one worker, the largest first, and then on all others that have room.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.protocol.images import CheckpointSpec

Placement = Mapping[str, tuple[CheckpointSpec, ...]]  # by the name of the worker


@dataclass(frozen=True, slots=True)
class Demand:
    """Checkpoints that share their weights, the bytes of those, and the workers that may draw them. `too_small` says of
    others why their memory does not do."""

    specs: tuple[CheckpointSpec, ...]
    bytes: int
    workers: frozenset[str]
    replicas: int | None = None  # workers that load them; None for all that have room
    too_small: tuple[tuple[str, str], ...] = ()


def place(demands: Sequence[Demand], rooms: Mapping[str, int], kept: Placement) -> Placement:
    """Return the workers of each checkpoint. `rooms` are bytes for weights by worker. Those of `kept` stay where they
    are, if they are still demanded; a worker that is not in `kept` gets the checkpoints that it has room for. The first
    worker of a checkpoint may be one without room: there it takes the place of the one that was used least recently."""
    placed = {
        worker: [demand for demand in demands if set(demand.specs) & set(kept.get(worker, ()))]
        for worker in {*rooms, *kept}
    }
    free = {worker: room - sum(demand.bytes for demand in placed[worker]) for worker, room in rooms.items()}

    def candidates(demand: Demand) -> list[str]:
        """Order the workers that may get a checkpoint: those with most room first, and of those the ones with the
        fewest checkpoints."""
        allowed = [worker for worker in rooms if worker in demand.workers and demand not in placed[worker]]
        return sorted(allowed, key=lambda worker: (-free[worker], len(placed[worker])))

    def put(demand: Demand, worker: str) -> None:
        placed[worker].append(demand)
        free[worker] -= demand.bytes

    by_size = sorted(demands, key=lambda demand: demand.bytes, reverse=True)
    homeless = [demand for demand in by_size if not any(demand in others for others in placed.values())]
    for demand in homeless:
        for worker in candidates(demand)[:1]:
            put(demand, worker)
    for demand in by_size:
        fitting = [
            worker
            for worker in candidates(demand)
            if demand.bytes <= free[worker] and (demand in homeless or worker not in kept)
        ]
        placed_on = sum(demand in others for others in placed.values())
        for worker in fitting if demand.replicas is None else fitting[: max(0, demand.replicas - placed_on)]:
            put(demand, worker)
    order = {demand: position for position, demand in enumerate(demands)}
    return {
        worker: tuple(spec for demand in sorted(chosen, key=lambda each: order[each]) for spec in demand.specs)
        for worker, chosen in placed.items()
    }
