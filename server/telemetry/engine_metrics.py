"""The metrics of the worker processes, which are read from their hosts at each scrape."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipelines.protocol.messages import CachedCheckpoints, WorkerMemory
from server.catalog.specs import spec_labels


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One worker. `engine` is its name, `kind` image, chat or classify; `checkpoints` says of each whether it loaded.
    `memory` is None before the worker has reported it. `work_s` is the estimated device time of an image worker's jobs,
    and `cached_checkpoints` its weights in memory."""

    engine: str
    kind: str
    up: bool
    asleep: bool
    waiting: int
    running: int
    restarts: int
    memory: WorkerMemory | None = None
    work_s: float = 0.0
    cached_checkpoints: CachedCheckpoints | None = None
    checkpoints: Mapping[str, bool] = field(default_factory=dict)


class EngineCollector(Collector):
    """Asks for the reports anew at each scrape, so that workers may come and go."""

    def __init__(self, reports: Callable[[], Sequence[EngineReport]]) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all workers."""
        reports = self._reports()
        yield _gauge("engine_up", "Whether the worker has loaded its checkpoints", reports, lambda each: each.up)
        asleep = "Whether the worker's weights have left its device"
        yield _gauge("worker_asleep", asleep, reports, lambda each: each.asleep)
        yield _gauge("jobs_waiting", "Jobs that have not started", reports, lambda each: each.waiting)
        yield _gauge("jobs_running", "Jobs that have started", reports, lambda each: each.running)
        images = [each for each in reports if each.kind == "image"]
        yield _gauge("work_seconds", "Estimated device time of a worker's jobs", images, lambda each: each.work_s)
        yield _gauge("weights_bytes", "Weights on a worker's device", images, _weights_bytes)
        yield _cached_checkpoints(reports)
        restarts = CounterMetricFamily(
            "darkroom_worker_restarts", "Times a worker died and was restarted", labels=["engine", "kind"]
        )
        for each in reports:
            restarts.add_metric([each.engine, each.kind], each.restarts)
        yield restarts
        yield from _memory(reports)
        checkpoints = GaugeMetricFamily(
            "darkroom_checkpoint_loaded",
            "Whether a checkpoint could be loaded, 1 or 0; absent before it was tried",
            labels=["engine", "kind", "checkpoint"],
        )
        for each in reports:
            for name, loaded in each.checkpoints.items():
                checkpoints.add_metric([each.engine, each.kind, name], loaded)
        yield checkpoints


class DecoderCollector(Collector):
    """How many image decoders ended early, by reason."""

    def __init__(self, reasons: Sequence[str], ended: Callable[[str], float]) -> None:
        self._reasons = reasons
        self._ended = ended

    def collect(self) -> Iterator[Metric]:
        """Yield the number of decoders that ended early, by reason."""
        family = CounterMetricFamily(
            "darkroom_decoders_ended", "Image decoders that ended before their image was decoded", labels=["reason"]
        )
        for reason in self._reasons:
            family.add_metric([reason], self._ended(reason))
        yield family


def _gauge(name: str, what: str, reports: Sequence[EngineReport], value: Callable[[EngineReport], float]) -> Metric:
    family = GaugeMetricFamily(f"darkroom_{name}", what, labels=["engine", "kind"])
    for each in reports:
        family.add_metric([each.engine, each.kind], value(each))
    return family


def _weights_bytes(report: EngineReport) -> float:
    return report.cached_checkpoints.device_bytes if report.cached_checkpoints is not None else 0


def _cached_checkpoints(reports: Sequence[EngineReport]) -> Metric:
    """Return the metric of cached checkpoints. Weights that several checkpoints share are reported for one of them."""
    family = GaugeMetricFamily(
        "darkroom_checkpoint_resident_bytes",
        "Weights of a checkpoint in memory, on the device or offloaded to the host; components may be shared",
        labels=["engine", "kind", "checkpoint", "place"],
    )
    for each in reports:
        listed = each.cached_checkpoints.checkpoints if each.cached_checkpoints is not None else ()
        labels = spec_labels({cached.spec: cached for cached in listed})
        for cached in listed:
            place = "device" if cached.on_device else "host"
            family.add_metric([each.engine, each.kind, labels[cached.spec], place], cached.bytes)
    return family


def _memory(reports: Sequence[EngineReport]) -> Iterator[Metric]:
    """Yield the memory of the worker process on the host, and of its GPU. On a CPU there is no second one."""
    host = GaugeMetricFamily(
        "darkroom_worker_memory_bytes", "Resident memory of a worker process", labels=["engine", "kind"]
    )
    device = GaugeMetricFamily(
        "darkroom_device_memory_bytes",
        "Memory of the worker's GPU: total and free of the whole device; allocated, and peak since its start, its own",
        labels=["engine", "kind", "what"],
    )
    for each in reports:
        if (memory := each.memory) is None:
            continue
        host.add_metric([each.engine, each.kind], memory.host_bytes)
        if (gpu := memory.gpu) is not None:
            for what in ("total", "free", "allocated", "peak"):
                device.add_metric([each.engine, each.kind, what], getattr(gpu, f"{what}_bytes"))
    yield host
    yield device
