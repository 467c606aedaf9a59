"""The properties of a machine that must be the same on all. The catalog is the one in the database; its weights are
compared by hash."""

import hashlib
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version

from pipelines.catalog.digests import Digests
from pipelines.catalog.memory import host_memory_bytes
from server.accounts.catalogs import CatalogContent
from server.backends.gpus import list_gpus
from server.catalog.images import CatalogError
from server.errors import StartError
from server.flows.catalog.files import SendProgress, compare_checksums, parse, weight_checksums
from server.settings import Settings

MIB = 2**20
WORDS = {
    "darkroom": "Darkroom", "ray": "Ray", "python": "Python", "weights": "DARKROOM_WEIGHTS",
    "moderation": "the moderation policy (by hash)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeProperties:
    """One machine: its versions, its folder of weights, and the hash of its policy."""

    darkroom: str
    ray: str
    python: str
    weights: str
    moderation: str

    def differences(self, other: "NodeProperties") -> list[str]:
        """Describe the differences in words, this node's against the other's."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{WORDS[name]}: {mine[name]} here, {theirs[name]} there" for name in mine if mine[name] != theirs[name]
        ]


def describe_node(settings: Settings) -> NodeProperties:
    """Describe this machine, to be compared with others. Raises StartError for a policy that can't be read."""
    policy = b""
    try:
        if settings.moderation is not None:
            policy = settings.moderation.read_bytes()
    except OSError as error:
        raise StartError(f"DARKROOM_MODERATION: {error}") from error
    return NodeProperties(
        darkroom=version("darkroom"),
        ray=version("ray"),
        python=platform.python_version(),
        weights=str(settings.weights.resolve()),
        moderation=hashlib.sha256(policy).hexdigest()[:16] if settings.moderation is not None else "none",
    )


def compare_weights(
    settings: Settings, content: CatalogContent, send: SendProgress = lambda _done, _total: None
) -> None:
    """Check that this node has the catalog's weights. Reads those that have changed since the last time. Raises
    StartError."""
    try:
        catalog = parse(content.files, settings.model_configs, settings.weights)
        sums = weight_checksums(catalog, settings.weights, Digests(settings.weight_digests), send)
        compare_checksums(sums, content.weights)
    except CatalogError as error:
        raise StartError(f"This node does not fit the cluster's catalog: {error}") from error


def memory_labels(settings: Settings) -> dict[str, str]:
    """Return this node's memory for weights as labels: the least memory of its GPUs, and its own."""
    gpus = [] if settings.device == "cpu" else list_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    labels = {"darkroom-host-mib": str(int(host_memory_bytes() // MIB))}
    if gpus:
        labels["darkroom-gpu-mib"] = str(min(gpu.total_bytes for gpu in gpus) // MIB)
    return labels
