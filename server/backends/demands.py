"""What the checkpoints of a catalog take, and which image workers may draw with them: by model, number of devices and
memory. Reads the headers of the files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.device_bytes import estimate_bytes
from pipelines.checkpoints.memory.runtime import least_bytes
from pipelines.checkpoints.work.estimate import WeightsKey, weights_key
from pipelines.protocol.images import CheckpointSpec, Event, ImageJob
from server.backends.engine_host import EngineHost
from server.backends.placement import Demand
from server.catalog.images import MAX_REFERENCES, Catalog

ImageHost = EngineHost[ImageJob, Event]


@dataclass(frozen=True, slots=True)
class Member:
    """A worker, the models that it may draw (None for any), its memory for weights of so many bytes each, on each of
    its devices. `most_bytes` is what it has for them when no other program uses its devices, None for no more."""

    host: ImageHost
    models: frozenset[str] | None = None
    room_bytes: int = 0
    item_bytes: int = 4
    devices: int = 1
    most_bytes: int | None = None


def demands_of(catalog: Catalog, members: Sequence[Member], replicas: Mapping[str, int]) -> Iterator[Demand]:
    """Yield the catalog's checkpoints by their weights, with the workers that may have them. With one worker sizes do
    not matter, and no file is read."""
    for specs, models in _by_weights(catalog):
        spec = specs[0]
        named = [member for member in members if member.models is None or member.models & models]
        allowed, size = _with_devices(named, spec.runtime.gpus), 0
        too_small: dict[str, str] = {}
        if len(members) > 1:
            allowed, too_small = _with_memory(allowed, spec)
            size = max((_bytes(spec, member, least=False) for member in allowed[:1]), default=0)
        wanted = [replicas[name] for name in models if name in replicas]
        names = frozenset(member.host.name for member in allowed)
        yield Demand(specs, size, names, max(wanted, default=None), tuple(too_small.items()))


def _by_weights(catalog: Catalog) -> Iterable[tuple[tuple[CheckpointSpec, ...], frozenset[str]]]:
    """Return the specs that share their weights, with the names of the models that they draw."""
    groups: dict[WeightsKey, dict[CheckpointSpec, set[str]]] = {}
    for spec in catalog.checkpoints:
        groups.setdefault(weights_key(spec), {})[spec] = set()
    for model in catalog.models.values():
        for count in (0, MAX_REFERENCES):
            spec = model.drawn_with(count).checkpoint
            if spec.upstream is None:
                groups[weights_key(spec)][spec].add(model.name)
    return [(tuple(group), frozenset[str]().union(*group.values())) for group in groups.values()]


def _with_devices(members: Sequence[Member], gpus: int) -> list[Member]:
    """Return the workers with the fewest devices that are enough. Where none has enough, all: loading reports the
    fault."""
    fewest = min((member.devices for member in members if member.devices >= gpus), default=None)
    return [member for member in members if fewest is None or member.devices == fewest]


def _with_memory(members: list[Member], spec: CheckpointSpec) -> tuple[list[Member], dict[str, str]]:
    """Return the workers whose devices can hold the smallest form of a checkpoint, and why the others can't, by their
    names. Where none can, all: loading reports the fault."""
    too_small: dict[str, str] = {}
    for member in members:
        least, most = _bytes(spec, member, least=True), member.room_bytes
        if least > (most := most if member.most_bytes is None else member.most_bytes):
            too_small[member.host.name] = (
                f"it takes at least {least / 2**30:.2f} GiB, and this worker's device has {most / 2**30:.2f} GiB for "
                "weights: others draw it"
            )
    fitting = [member for member in members if member.host.name not in too_small]
    return (fitting, too_small) if fitting else (members, {})


def _bytes(spec: CheckpointSpec, member: Member, *, least: bool) -> int:
    try:
        return (least_bytes if least else estimate_bytes)(spec, member.item_bytes)
    except (CheckpointError, OSError):  # loading it says what is wrong
        return 0
