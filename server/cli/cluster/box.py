"""What one machine has that must be the same on all: versions, the catalog, and the weights by hash."""

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipelines.catalog.images import Catalog
from pipelines.catalog.memory import host_memory_bytes
from server.backends.gpus import list_gpus
from server.settings import Settings

KNOWN_HASHES = "weight-hashes.json"  # in the home: files that have not changed are not read again
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Box:
    """One machine. `catalog` and `weights` are hashes."""

    darkroom: str
    ray: str
    python: str
    weights_folder: str
    catalog: str
    weights: str

    @property
    def digest(self) -> str:
        """Of all of it, short enough for a label."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]

    def differences(self, other: "Box") -> list[str]:
        """In words, as this box's against the other's."""
        mine, theirs = asdict(self), asdict(other)
        words = {"weights_folder": "DARKROOM_WEIGHTS", "catalog": "the catalog", "weights": "the weights"}
        return [
            f"{words.get(name, name)}: {mine[name][:40]} here, {theirs[name][:40]} there"
            for name in mine
            if mine[name] != theirs[name]
        ]


def examine_box(settings: Settings, catalog: Catalog) -> Box:
    """Reads all weights, unless they are as they were the last time. Blocks."""
    paths = {path for model in catalog.models.values() for spec in model.checkpoints for path in spec.paths}
    paths |= {spec.path for spec in catalog.chat.checkpoints}
    files = sorted(settings.model_configs.glob("*.toml"))
    policy = [settings.moderation] if settings.moderation is not None else []
    texts = hashlib.sha256()
    for file in (*files, *policy):
        texts.update(f"{file.name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return Box(
        darkroom=version("darkroom"),
        ray=version("ray"),
        python=platform.python_version(),
        weights_folder=str(settings.weights.resolve()),
        catalog=texts.hexdigest(),
        weights=_hash_weights(settings.home / KNOWN_HASHES, paths),
    )


def memory_labels(settings: Settings) -> dict[str, str]:
    """What this box has for weights: the least memory of its GPUs, and its own."""
    gpus = [] if settings.device == "cpu" else list_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    labels = {"darkroom-host-mib": str(int(host_memory_bytes() // MIB))}
    if gpus:
        labels["darkroom-gpu-mib"] = str(min(gpu.total_bytes for gpu in gpus) // MIB)
    return labels


def _hash_weights(cache: Path, paths: Iterable[Path]) -> str:
    try:
        known: Mapping[str, Any] = json.loads(cache.read_text())
    except (OSError, ValueError):
        known = {}
    found: dict[str, list[Any]] = {}
    digest = hashlib.sha256()
    for path in sorted(paths):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if not file.is_file():
                continue
            status = file.stat()
            state = [status.st_size, status.st_mtime_ns, status.st_ino]
            entry = known.get(str(file), [])
            if entry[:3] != state:
                with file.open("rb") as stream:
                    entry = [*state, hashlib.file_digest(stream, "sha256").hexdigest()]
            found[str(file)] = entry
            digest.update(f"{file.relative_to(path.parent)}\0{entry[3]}\0".encode())
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps(found))
    return digest.hexdigest()
