"""Builds the hosts of all workers: by GPU, or as DARKROOM_ENGINES says."""

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import structlog

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.memory.chat_files import loaded_bytes
from pipelines.checkpoints.memory.device_bytes import component_bytes
from pipelines.checkpoints.memory.shares import host_memory_bytes, weights_budget, worker_bytes
from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from pipelines.protocol.classify import ClassifierSpec, ClassifyEvent, ClassifyJob
from pipelines.protocol.images import Event, ImageJob
from server.backends.child_process import ChildProcess
from server.backends.decoding.pool import DecoderPool
from server.backends.demands import ImageHost, Member
from server.backends.engine_host import EngineHost, HostLimits
from server.backends.engine_layout import Layout, Slot, automatic_layout, read_layout
from server.backends.gpus import list_gpus
from server.backends.transport import Launcher
from server.backends.upstream import UpstreamClient
from server.backends.upstream_contexts import UpstreamContexts
from server.backends.worker_pool import WorkerPool
from server.catalog.images import Catalog
from server.errors import StartError
from server.settings import Settings

log = structlog.stdlib.get_logger("darkroom.engine")

if TYPE_CHECKING:
    from server.backends.cluster.engine_actor import Offer
    from server.backends.cluster.ray_cluster import RayCluster


@dataclass(frozen=True, slots=True)
class Engines:
    """The hosts of a server's workers, its decoders, and the connections to other servers: all that runs outside of its
    process. `cluster`: the Ray cluster that has the workers, if there is one."""

    image: WorkerPool
    chat: EngineHost[ChatJob | CountJob, ChatEvent]  # started only if the catalog has local chat models
    classify: EngineHost[ClassifyJob, ClassifyEvent]  # started only if the policy has classifiers
    upstreams: UpstreamClient
    upstream_contexts: UpstreamContexts
    decoders: DecoderPool
    cluster: "RayCluster | None" = None


def build_engines(
    settings: Settings,
    catalog: Catalog,
    classifiers: Sequence[ClassifierSpec],
    upstreams: UpstreamClient,
    decoders: DecoderPool,
    cluster: "RayCluster | None" = None,
) -> Engines:
    """Build the hosts of all workers. Nothing is started here, but an image engine of the cluster is waited for. Raises
    StartError for a layout that this machine or this catalog does not fit."""
    layout = _layout(settings, catalog, classifiers)
    classify = EngineHost[ClassifyJob, ClassifyEvent](
        "classify",
        classifiers,
        HostLimits(settings.max_queue, idle_unload_s=settings.idle_unload_s),
        layout.classify.device,
        _launcher("classify", layout.classify, cluster, [_checks(settings)]),
    )
    if cluster is None:
        members = [_member(settings, layout, slot, catalog, classifiers) for slot in layout.images]
    else:
        members = [cluster_member(settings, cluster, offer) for offer in cluster.wait_engines()]

    def open_upstream(url: str) -> ImageHost:
        """Build the host of another server. Other servers watch their own jobs; each of them ends here with its time
        limit."""
        from server.backends.image_upstream.drawing import UpstreamDrawing
        from server.backends.image_upstream.transport import UpstreamLauncher

        launcher = UpstreamLauncher(url, upstreams, UpstreamDrawing(upstreams, decoders))
        name = url.partition("://")[2]
        return EngineHost("image", (), HostLimits(settings.max_queue, silence_s=math.inf), launcher=launcher, name=name)

    worker_pool = WorkerPool(members, layout.replicas, open_upstream)
    try:
        worker_pool.unload_except(worker_pool.plan(catalog), preload=settings.preload)
    except CheckpointError as error:
        raise StartError(str(error)) from error
    chat = _chat(settings, layout.chat, catalog, cluster)
    return Engines(worker_pool, chat, classify, upstreams, UpstreamContexts(upstreams), decoders, cluster)


def _layout(settings: Settings, catalog: Catalog, classifiers: Sequence[ClassifierSpec]) -> Layout:
    found = [] if settings.device == "cpu" else list_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    usable = [gpu for gpu in found if gpu.problem is None]
    for gpu in found:
        if gpu.problem is not None:
            log.warning("a GPU is left out", reason=gpu.problem)
    if settings.engines == "auto":
        device = "cuda" if found and not usable else settings.device
        needs = {spec.runtime.gpus for spec in catalog.checkpoints}
        others_bytes = _chat_bytes(catalog) + _classifier_bytes(classifiers)
        return automatic_layout(device, usable, needs, others_bytes)
    return read_layout(settings.engines, found, tuple(catalog.models), len(os.sched_getaffinity(0)))


def _chat_bytes(catalog: Catalog) -> int:
    return worker_bytes((spec.path, spec.quantize) for spec in catalog.chat.checkpoints)


def _classifier_bytes(classifiers: Sequence[ClassifierSpec]) -> int:
    return worker_bytes((spec.path, "none") for spec in classifiers)


def largest_weights(catalog: Catalog) -> int:
    """Return the bytes of the weights of the catalog's largest checkpoint, in half precision: what passes through the
    host's memory while they are loaded. One that can't be loaded counts nothing."""
    sizes = [loaded_bytes(spec.path) for spec in catalog.chat.checkpoints]
    for spec in catalog.checkpoints:
        with suppress(CheckpointError, OSError):
            sizes.append(int(sum(map(sum, component_bytes(CheckpointFiles.of(spec), 2, "none").values()))))
    return max(sizes, default=0)


def _member(
    settings: Settings, layout: Layout, slot: Slot, catalog: Catalog, classifiers: Sequence[ClassifierSpec]
) -> Member:
    """Build an image worker, with the bytes that it has for weights beside the workers of other kinds on its device."""
    beside = sum(slot.shares_device(other) for other in layout.images)
    chat = _chat_bytes(catalog) if slot.shares_device(layout.chat) else 0
    classify = _classifier_bytes(classifiers) if slot.shares_device(layout.classify) else 0
    others_bytes = (chat + classify) // beside
    limits = {"--device-gib": settings.device_memory_gib, "--host-gib": settings.host_memory_gib}
    options = [f"{name}={value:g}" for name, value in limits.items() if value is not None]
    processes = sum(1 if other.gpus else other.size for other in layout.images)  # that divide the host's memory
    options += [f"--devices={slot.size}", f"--others-bytes={others_bytes}", f"--image-workers={processes}"]
    options += [f"--chat-cache-share={settings.chat_cache_share:g}", f"--kernel-cache={settings.home / 'kernels'}"]
    options += [_checks(settings), f"--weights-bytes={largest_weights(catalog)}"]
    host = EngineHost(
        "image", (), _limits(settings, settings.max_queue), slot.device,
        ChildProcess("image", options, slot.environment), slot.name,
    )  # fmt: skip
    of_host = host_memory_bytes() / processes if slot.device != "cuda" else 0  # of one whose GPUs can't be used
    total = min((gpu.total_bytes for gpu in slot.gpus), default=of_host)
    free = min((gpu.free_bytes for gpu in slot.gpus), default=total)
    others = others_bytes + total * settings.chat_cache_share if others_bytes else 0
    room, most = weights_budget(total, free, others), weights_budget(total, total, others)
    if settings.device_memory_gib is not None:
        room = most = settings.device_memory_gib * 2**30
    return Member(host, slot.models, int(room), 2 if slot.device == "cuda" else 4, slot.size, int(most))


def _chat(
    settings: Settings, slot: Slot, catalog: Catalog, cluster: "RayCluster | None"
) -> EngineHost[ChatJob | CountJob, ChatEvent]:
    specs = catalog.chat.checkpoints
    return EngineHost(
        "chat",
        specs if settings.preload else (),
        _limits(settings, settings.chat_max_queue, max((spec.max_batch for spec in specs), default=1)),
        slot.device,
        _launcher("chat", slot, cluster, [f"--chat-cache-share={settings.chat_cache_share:g}", _checks(settings)]),
    )


def _checks(settings: Settings) -> str:
    return f"--checks={settings.home / 'probes'}"


def _limits(settings: Settings, jobs: int, concurrency: int = 1) -> HostLimits:
    return HostLimits(jobs, concurrency, settings.worker_silence_s, settings.idle_unload_s)


def _launcher(
    kind: Literal["chat", "classify"], slot: Slot, cluster: "RayCluster | None", options: Sequence[str] = ()
) -> Launcher:
    """Return the cluster's engine of this kind, if it has one, else a process of this server."""
    if cluster is not None and kind in cluster.kinds:
        return cluster.launcher(kind)
    return ChildProcess(kind, options, slot.environment)


def cluster_member(settings: Settings, cluster: "RayCluster", offer: "Offer") -> Member:
    """Build a pool's member of an image engine of the cluster."""
    spec = offer.spec
    host = EngineHost[ImageJob, Event](
        "image", (), HostLimits(settings.max_queue, silence_s=settings.worker_silence_s), spec.device,
        cluster.launcher(spec.name), spec.name,
    )  # fmt: skip
    return Member(host, spec.models, offer.room_bytes, 2 if spec.device == "cuda" else 4)
