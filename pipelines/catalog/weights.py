"""Which checkpoint files share one copy of the weights."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipelines.protocol.images import CheckpointSpec, Runtime


class WeightsKey(NamedTuple):
    """Specs with the same files and runtime options share the weights, whatever their sampling."""

    path: Path
    config: Path | None
    base: Path | None
    runtime: Runtime
    version: int


def weights_key(spec: CheckpointSpec) -> WeightsKey:
    """The key of a spec's weights."""
    return WeightsKey(spec.path, spec.config, spec.base, spec.runtime, spec.version)


def replaces(new: CheckpointSpec, old: CheckpointSpec) -> bool:
    """Whether `new` is a swap of `old`: other files for an otherwise equal catalog file, or the same files with other
    settings."""
    as_old = replace(new, name=old.name, path=old.path, version=old.version, sampling=old.sampling)
    return new.path == old.path or as_old == old
