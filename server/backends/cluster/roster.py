"""Which engines a cluster has. The supervisor decides; servers, engines and commands read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

NAMESPACE = "darkroom"  # of Ray's named actors
SUPERVISOR = "supervisor"
EngineKind = Literal["image", "chat", "classify"]
EngineDevice = Literal["cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of the cluster, by the name of its Ray actor, which runs on a node with these `labels`."""

    name: str
    kind: EngineKind
    device: EngineDevice
    models: frozenset[str] | None = None  # that an image engine draws; None for any
    labels: Mapping[str, str] = field(default_factory=dict)
    room_bytes: int = 0  # memory for weights, as far as it is known before the engine runs
    beside: int = 1  # image engines that divide the memory of its host


@dataclass(frozen=True, slots=True)
class Roster:
    """The list of all engines that a cluster should have, whether they run or not."""

    engines: tuple[Engine, ...]

    def of_kind(self, kind: EngineKind) -> tuple[Engine, ...]:
        """Return the engines of one kind."""
        return tuple(engine for engine in self.engines if engine.kind == kind)
